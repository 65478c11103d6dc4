//! Messages that the pingpongs of rdma-core send over TCP.
//!
//! Each side sends one message of 52 bytes, the client first: LID, QPN, PSN and GID as hexadecimal
//! digits, with colons between them and a zero behind. The client then sends `done`.

use anyhow::{Context, bail, ensure};
use roce::decode::Printable;
use roce::verbs::Endpoint;
use roce::wire::{Gid, Psn, Qpn};

/// The length of a message.
pub(crate) const MESSAGE_BYTES: usize = 52;

/// Returns the message for an endpoint.
pub(crate) fn to_message(endpoint: &Endpoint) -> [u8; MESSAGE_BYTES] {
    let gid: String = endpoint.gid.0.iter().map(|byte| format!("{byte:02x}")).collect();
    // The LID is InfiniBand's; on Ethernet it is zero.
    let text = format!("0000:{:06x}:{:06x}:{gid}\0", endpoint.qpn.get(), endpoint.psn.get());
    text.as_bytes().try_into().expect("the fields have fixed widths")
}

/// Parses a message.
pub(crate) fn from_message(message: &[u8; MESSAGE_BYTES]) -> anyhow::Result<Endpoint> {
    let text = message.strip_suffix(b"\0").and_then(|text| str::from_utf8(text).ok());
    let text = text.context("the message is not text that ends with a zero")?;
    let fields: Vec<&str> = text.split(':').collect();
    let [lid, qpn, psn, gid] = fields[..] else {
        bail!("the message has {} fields instead of 4", fields.len());
    };
    for (field, width) in [(lid, 4), (qpn, 6), (psn, 6), (gid, 32)] {
        let sound = field.len() == width && field.bytes().all(|byte| byte.is_ascii_hexdigit());
        ensure!(sound, "'{}' is not {width} hexadecimal digits", Printable(field));
    }
    let gid = u128::from_str_radix(gid, 16)?.to_be_bytes();
    let (qpn, psn) = (u32::from_str_radix(qpn, 16)?, u32::from_str_radix(psn, 16)?);
    ensure!(
        gid != [0; 16],
        "the other side gave no GID: run it with -g INDEX (ibv_devinfo -v lists them)"
    );
    Ok(Endpoint { gid: Gid(gid), qpn: Qpn::new(qpn), psn: Psn::new(psn) })
}

/// Returns whether a connection that begins with these bytes is a pingpong's.
pub(crate) fn is_message(start: &[u8; 5]) -> bool {
    let (lid, colon) = start.split_at(4);
    lid.iter().all(u8::is_ascii_hexdigit) && colon == b":"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint() -> Endpoint {
        let gid = Gid::from(std::net::Ipv4Addr::new(10, 9, 0, 2));
        Endpoint { gid, qpn: Qpn::new(0x11), psn: Psn::new(0xabcdef) }
    }

    #[test]
    fn a_message_is_what_the_originals_send() {
        let message = b"0000:000011:abcdef:00000000000000000000ffff0a090002\0";
        assert_eq!(&to_message(&endpoint()), message);
        assert_eq!(from_message(message).unwrap(), endpoint());
        assert!(is_message(b"0000:") && is_message(b"1aF0:"));
        assert!(!is_message(b"roce-") && !is_message(b"00000") && !is_message(b"5.60\0"));
    }

    #[test]
    fn what_is_no_message_is_refused_and_named() {
        let refused = |text: &[u8; MESSAGE_BYTES]| from_message(text).unwrap_err().to_string();
        let no_gid = b"0000:000011:abcdef:00000000000000000000000000000000\0";
        assert!(refused(no_gid).contains("-g INDEX"));
        let sign = b"0000:+00011:abcdef:00000000000000000000ffff0a090002\0";
        assert!(refused(sign).contains("'+00011' is not 6 hexadecimal digits"));
        let shifted = b"000:0000011:abcdef:00000000000000000000ffff0a090002\0";
        assert!(refused(shifted).contains("'000' is not 4"));
        let long = b"0000:000011:abcdef:00000000000000000000ffff0a0900022";
        assert!(refused(long).contains("ends with a zero"));
        let many = b"0000:000011:abcdef:00000000000000:00000ffff0a090002\0";
        assert!(refused(many).contains("5 fields"));
        assert!(refused(&[0xff; MESSAGE_BYTES]).contains("not text"));
    }
}
