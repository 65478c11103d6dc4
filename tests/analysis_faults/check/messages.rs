//! The messages of each requester, where its own point captured.

use roce::analysis::Outcome;
use roce::verbs::WcStatus;
use roce::wire::Operation;
use roce::wire::aeth::NakCode;

use super::super::plan::{Class, Op};
use super::super::truth::Completed;
use super::Check;

impl Check<'_> {
    /// The messages of each requester, where its own point captured.
    pub(super) fn messages(&self) {
        for index in 0..self.scenario.connections.len() {
            for requester in [0, 1] {
                if self.has_point_of(requester) {
                    self.messages_of(index, requester);
                }
            }
        }
    }

    pub(super) fn messages_of(&self, index: usize, requester: usize) {
        let mut told: Vec<_> = self.seen.messages.iter().collect();
        told.retain(|message| {
            let connection = self.seen.connection_of(self.truth, message.flow);
            connection.is_some_and(|(of, is_b)| {
                of == index && (message.requester.exchanged_if(is_b).index()) == requester
            })
        });
        told.sort_by_key(|message| message.first_frame);
        let told: Vec<_> = told
            .iter()
            .map(|message| {
                (message.operation, message.immediate, message.bytes, outcome(message.outcome))
            })
            .collect();
        let mtu = self.scenario.connections[index].attr.mtu.bytes() as u32;
        let mut cursor = 0;
        let mut real = Vec::new();
        let posts = self.truth.completed.iter();
        for done in posts.filter(|done| (done.connection, done.requester) == (index, requester)) {
            let psns = match done.op {
                Op::CompareSwap | Op::FetchAdd => 1,
                _ => done.len.div_ceil(mtu).max(1),
            };
            let (first, end) = (cursor, cursor + u64::from(psns));
            cursor = end;
            let is_begun = self.truth.transmissions.iter().any(|packet| {
                (packet.connection, packet.sender, packet.class)
                    == (index, requester, Class::Request)
                    && (first..end).contains(&packet.sequence)
            });
            if is_begun {
                real.push(expected(done));
            }
        }
        let without_outcome = |all: &[(Operation, bool, u64, &'static str)]| -> Vec<_> {
            all.iter()
                .map(|&(operation, immediate, bytes, _)| (operation, immediate, bytes))
                .collect()
        };
        let is_exempt = told != real
            && without_outcome(&told) == without_outcome(&real)
            && self.cannot_know_outcome(index, requester);
        if told != real && !is_exempt {
            let host = ["A", "B"][requester];
            self.say(format!(
                "messages of connection {index}, {host}:\n   {told:?}\nand not\n   {real:?}"
            ));
        }
    }
}

/// An outcome, without what the code of a NAK is.
fn outcome(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Completed => "completed",
        Outcome::Refused(NakCode::RemoteAccessError) => "refused",
        Outcome::Refused(_) => "refused for another reason",
        Outcome::RnrRetryExceeded => "RNR retries exceeded",
        Outcome::RetryExceeded => "retries exceeded",
        Outcome::Flushed => "flushed",
        Outcome::InFlight => "in flight",
        Outcome::Incomplete => "incomplete",
        _ => "unknown",
    }
}

/// Returns the operation, the immediate flag, the length and the outcome that a message is expected
/// to have.
fn expected(done: &Completed) -> (Operation, bool, u64, &'static str) {
    let (operation, immediate) = match done.op {
        Op::Send => (Operation::Send, false),
        Op::SendImm => (Operation::Send, true),
        Op::Write | Op::WriteWrongKey => (Operation::Write, false),
        Op::WriteImm => (Operation::Write, true),
        Op::Read => (Operation::ReadRequest, false),
        Op::CompareSwap => (Operation::CompareSwap, false),
        Op::FetchAdd => (Operation::FetchAdd, false),
    };
    let outcome = match done.status {
        Some(WcStatus::Success) => "completed",
        Some(WcStatus::RemAccessErr) => "refused",
        Some(WcStatus::RnrRetryExcErr) => "RNR retries exceeded",
        Some(WcStatus::RetryExcErr) => "retries exceeded",
        Some(WcStatus::WrFlushErr) => "flushed",
        Some(_) => "another status",
        None => "in flight",
    };
    (operation, immediate, done.len.into(), outcome)
}
