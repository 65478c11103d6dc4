//! Every connection that was captured is found once.

use std::collections::BTreeMap;

use roce::verbs::QpType;

use super::super::world::witness;
use super::Check;

impl Check<'_> {
    /// Every connection that was captured is one connection, with the right queue pairs.
    pub(super) fn pairing(&self) {
        let mut found: BTreeMap<usize, usize> = BTreeMap::new();
        for connection in &self.seen.report.connections {
            if connection.ends.iter().any(|end| end.address == witness(self.scenario.ipv6)) {
                continue;
            }
            match self.seen.scenario_of(self.truth, connection) {
                Some((index, _)) => *found.entry(index).or_default() += 1,
                None => self.say(format!(
                    "connection {} is none of the scenario's: {:?}",
                    connection.flow, connection.ends
                )),
            }
        }
        for (index, plan) in self.scenario.connections.iter().enumerate() {
            let of_it = |sender| {
                let frames = self.seen.frames.iter().map(|(_, captured)| *captured);
                let mut whole = frames.filter(|captured| !captured.is_corrupted);
                whole.any(|captured| {
                    let packet = &self.truth.transmissions[captured.transmission];
                    packet.connection == index && packet.sender == sender && !packet.is_cnp
                })
            };
            let senders = usize::from(of_it(0)) + usize::from(of_it(1));
            let count = found.get(&index).copied().unwrap_or(0);
            // UC has no responses that tell which queue pairs belong together; two that request
            // each other may be two.
            let most = if plan.kind == QpType::Rc || plan.kind == QpType::Ud { 1 } else { senders };
            if count > most || (senders > 0 && count == 0) {
                let ends = |c: &roce::analysis::Connection| {
                    let qpns = c.ends.each_ref().map(|end| end.qpn.map(|qpn| qpn.get()));
                    format!("{} {qpns:x?} {:?} {:?}", c.flow, c.pairing, c.service)
                };
                let all: Vec<_> = self.seen.report.connections.iter().map(ends).collect();
                let real = &self.truth.qpns;
                self.say(format!(
                    "connection {index} was found {count} times: {all:?} and not {real:x?}"
                ));
            }
        }
    }
}
