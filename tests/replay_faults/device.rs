//! Hooks between an engine and its wire, so that the two together are a device with a
//! flaw.

use std::time::Duration;

use roce::time::Instant;
use roce::wire::{Packet, Qpn, RKey};

use super::world::Host;

/// Whether a captured packet is what a correct device sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    Honest,
    /// Shows the flaw.
    Broken,
    /// Comes of the flaw: may be called wrong, or not.
    Consequence,
}

/// A packet that a device sends.
pub struct Out {
    pub delay: Duration,
    /// Bytes from the BTH to the last pad byte.
    pub packet: Vec<u8>,
    pub mark: Mark,
}

/// World of a hook: what it may look at, and do.
pub struct Cx<'w> {
    pub now: Instant,
    /// The engine, and its memory.
    pub host: &'w mut Host,
    /// Queue pair numbers of A and B, by connection.
    pub qpns: &'w [[Qpn; 2]],
    /// Keys of the peer: for everything, read-only, for a page, of another protection domain.
    pub peer_keys: [RKey; 4],
    pub out: Vec<Out>,
    pub taken: Vec<Vec<u8>>,
    /// Time since when something is missing that should have been sent.
    pub omitted: Option<Instant>,
}

impl Cx<'_> {
    /// Sends a packet.
    pub fn send(&mut self, packet: &[u8]) {
        self.send_as(packet, Mark::Honest, Duration::ZERO);
    }

    /// Sends a packet that no correct device sends.
    pub fn send_broken(&mut self, packet: &[u8]) {
        self.send_as(packet, Mark::Broken, Duration::ZERO);
    }

    pub fn send_as(&mut self, packet: &[u8], mark: Mark, delay: Duration) {
        self.out.push(Out { delay, packet: packet.to_vec(), mark });
    }

    /// Sends nothing where something is due.
    pub fn omit(&mut self) {
        self.omitted = self.omitted.or(Some(self.now));
    }

    /// Gives a packet to the engine.
    pub fn take(&mut self, packet: &[u8]) {
        self.taken.push(packet.to_vec());
    }
}

/// Takes a packet, from its BTH to its last pad byte.
pub type Hook = Box<dyn FnMut(&[u8], &mut Cx<'_>)>;

/// Sends what no engine sends.
pub type Start = Box<dyn FnOnce(&mut Cx<'_>)>;

/// Hooks around an engine. Without one, packets pass.
#[derive(Default)]
pub struct Device {
    /// Called before anything else.
    pub start: Option<Start>,
    pub outgoing: Option<Hook>,
    pub incoming: Option<Hook>,
}

/// Rewrites the n-th packet (from 1) that the engine emits and that `which` matches.
pub fn nth_out(
    which: fn(&Packet<'_>) -> bool,
    nth: usize,
    mut instead: impl FnMut(&[u8], &mut Cx<'_>) + 'static,
) -> Device {
    let mut count = 0;
    outgoing(move |packet, cx| {
        let is_it = which(&Packet::parse(packet).unwrap());
        count += usize::from(is_it);
        if is_it && count == nth { instead(packet, cx) } else { cx.send(packet) }
    })
}

/// Sends something else than the engine.
pub fn outgoing(hook: impl FnMut(&[u8], &mut Cx<'_>) + 'static) -> Device {
    Device { outgoing: Some(Box::new(hook)), ..Device::default() }
}

/// Sends what a script says; its engine has nothing to do.
pub fn script(start: impl FnOnce(&mut Cx<'_>) + 'static) -> Device {
    Device { start: Some(Box::new(start)), ..Device::default() }
}
