//! Notes of the first pass on every packet, kept for the second one in a word each.

use super::limits::{NOTED_DAMAGED_MAX, NOTES_MAX};
use crate::analysis::{End, FlowNumber, PacketNote, PacketRole};

/// Note of the first pass on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Note {
    /// Number of its connection.
    pub(super) flow: FlowNumber,
    /// End that sent it.
    pub(super) sender: End,
    /// Request or response, and which.
    pub(super) role: PacketRole,
    /// Whether its sender transmitted the PSN before.
    pub(super) is_retransmission: bool,
    /// The network delivered the same packet twice.
    pub(super) duplicate: bool,
    /// A packet that was sent later arrived earlier.
    pub(super) reordered: bool,
}

/// The roles, by the number that a word has for each.
const ROLES: [PacketRole; 7] = [
    PacketRole::Request,
    PacketRole::Ack,
    PacketRole::Response,
    PacketRole::Nak,
    PacketRole::Rnr,
    PacketRole::Cnp,
    PacketRole::Management,
];

/// Bits of a word below the number of the connection.
const FLAGS: u32 = 7;

impl From<&PacketNote> for Note {
    fn from(note: &PacketNote) -> Self {
        let PacketNote { flow, sender, role, retransmission, duplicate, reordered, .. } = *note;
        let is_retransmission = retransmission.is_some();
        Self { flow, sender, role, is_retransmission, duplicate, reordered }
    }
}

impl Note {
    /// The note in one word. Connections are numbered from 1 on, so it is not 0.
    fn pack(&self) -> u32 {
        let role = ROLES.iter().position(|&role| role == self.role).unwrap_or(0);
        let bits = [self.sender == End::B, self.is_retransmission, self.duplicate, self.reordered];
        let bits = bits.into_iter().fold(0, |word, bit| word << 1 | u32::from(bit));
        self.flow.0 << FLAGS | u32::try_from(role).unwrap_or(0) << 4 | bits
    }

    fn unpack(word: u32) -> Option<Self> {
        let flow = word >> FLAGS;
        (flow > 0).then(|| Self {
            flow: FlowNumber(flow),
            sender: End::A.exchanged_if(word & 8 > 0),
            role: ROLES.get((word >> 4 & 7) as usize).copied().unwrap_or(PacketRole::Request),
            is_retransmission: word & 4 > 0,
            duplicate: word & 2 > 0,
            reordered: word & 1 > 0,
        })
    }
}

/// The notes on the packets of a capture, in order. Where there are too many, none are kept.
#[derive(Clone, Debug, Default)]
pub(super) struct NoteLog {
    words: Vec<u32>,
    /// Positions of the packets whose ICRC is wrong: the first ones, if there are many.
    damaged: Vec<usize>,
    is_full: bool,
}

impl NoteLog {
    /// Adds the note on the next packet, if it has one, and whether its ICRC is wrong.
    pub(super) fn push(&mut self, note: Option<Note>, is_damaged: bool) {
        if self.words.len() >= NOTES_MAX {
            *self = Self { is_full: true, ..Self::default() };
        }
        if !self.is_full {
            if is_damaged && self.knows_damaged() {
                self.damaged.push(self.words.len());
            }
            self.words.push(note.map_or(0, |note| note.pack()));
        }
    }

    /// Whether the notes are kept.
    pub(super) fn is_whole(&self) -> bool {
        !self.is_full
    }

    /// Whether all packets whose ICRC is wrong are known.
    pub(super) fn knows_damaged(&self) -> bool {
        self.damaged.len() < NOTED_DAMAGED_MAX
    }

    /// Positions of the packets whose ICRC is wrong, in order.
    pub(super) fn damaged(&self) -> &[usize] {
        &self.damaged
    }

    /// The note on a packet, by its place among all.
    pub(super) fn get(&self, at: usize) -> Option<Note> {
        Note::unpack(*self.words.get(at)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::limits::FLOW_NUMBERS_MAX;

    #[test]
    fn every_note_fits_a_word() {
        let mut log = NoteLog::default();
        let mut all = Vec::new();
        for (at, role) in ROLES.into_iter().enumerate() {
            for flow in [1, 77, FLOW_NUMBERS_MAX] {
                let [sender, is_retransmission, duplicate, reordered] =
                    [at % 2 > 0, at % 3 > 0, flow > 1, at > 3];
                let sender = End::A.exchanged_if(sender);
                let flow = FlowNumber(flow);
                let note = Note { flow, sender, role, is_retransmission, duplicate, reordered };
                all.extend([Some(note), None]);
            }
        }
        all.iter().for_each(|&note| log.push(note, false));
        assert!(all.iter().enumerate().all(|(at, &note)| log.get(at) == note));
        assert_eq!(log.get(all.len()), None);
    }
}
