//! Proofs that a peer knows a secret, without the secret on the wire: HMAC-SHA256 over labeled
//! fields.
//!
//! Each field goes in with its label, and both with their lengths, so that no two lists of fields
//! have one encoding. A protocol puts in what must not be exchanged: its own name and version, the
//! role of the side that proves, both addresses, both nonces and what is asked for. A proof that is
//! relayed to another peer, or replayed, fails then.
#![forbid(unsafe_code)]

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Bytes of a proof on the wire.
pub(crate) const TAG: usize = 32;

/// Bytes of a nonce: enough that none is drawn twice.
pub(crate) const NONCE: usize = 16;

/// A proof in the making. See the [module](self).
#[derive(Clone, Debug)]
#[must_use = "a proof is sent or verified"]
pub(crate) struct Proof {
    mac: Hmac<Sha256>,
}

impl Proof {
    /// Begins a proof that its maker knows `secret`, in a protocol of this name and version.
    pub(crate) fn new(secret: &[u8], protocol: &str) -> Self {
        let mac = Hmac::new_from_slice(secret).expect("HMAC takes a key of any length");
        Self { mac }.field("protocol", protocol.as_bytes())
    }

    /// Adds a field, with its label.
    pub(crate) fn field(mut self, label: &str, value: &[u8]) -> Self {
        for bytes in [label.as_bytes(), value] {
            self.mac.update(&(bytes.len() as u64).to_be_bytes());
            self.mac.update(bytes);
        }
        self
    }

    /// Returns the proof as it goes over the wire.
    pub(crate) fn tag(self) -> [u8; TAG] {
        self.mac.finalize().into_bytes().into()
    }

    /// Whether a peer's proof is this one, in a time that does not depend on how much of it is
    /// right.
    pub(crate) fn verify(self, tag: &[u8]) -> bool {
        self.mac.verify_slice(tag).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proof_is_hmac_sha256_of_length_prefixed_fields() {
        // Computed by Python's hmac module over the same bytes.
        let tag = Proof::new(b"key", "p").field("role", b"client").tag();
        let hex: String = tag.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "86f40d70a2b86000d77a55ae8f2550a0e8073100437ede514f065956b2e25ac8");
    }

    #[test]
    fn another_secret_protocol_label_value_order_or_length_is_another_proof() {
        let base = || Proof::new(b"s", "p").field("a", b"xy").field("b", b"z");
        let tag = base().tag();
        assert!(base().verify(&tag) && base().clone().verify(&tag));
        let others = [
            Proof::new(b"t", "p").field("a", b"xy").field("b", b"z"),
            Proof::new(b"s", "q").field("a", b"xy").field("b", b"z"),
            Proof::new(b"s", "p").field("c", b"xy").field("b", b"z"),
            Proof::new(b"s", "p").field("a", b"x").field("b", b"yz"),
            Proof::new(b"s", "p").field("ax", b"y").field("b", b"z"),
            Proof::new(b"s", "p").field("b", b"z").field("a", b"xy"),
            base().field("", b""),
        ];
        for other in others {
            assert!(!other.verify(&tag));
        }
        assert!(!base().verify(&tag[..TAG - 1]) && !base().verify(&[]));
    }
}
