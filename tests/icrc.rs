//! The ICRC against everything that is known about it from outside: vectors, captures, two independent CRCs.

use roce::wire::{Frame, IcrcVerdict, LinkType, ROCE_PORT};
use serde_json::Value;

mod common;
use common::{captured_frames, unhex};

fn vectors() -> Value {
    serde_json::from_str(include_str!("../testdata/icrc.json")).unwrap()
}

/// The verdict on an Ethernet frame.
fn verdict(frame: &[u8]) -> Option<IcrcVerdict> {
    Frame::parse(LinkType::ETHERNET, frame, ROCE_PORT).icrc()
}

/// CRC-32, one bit at a time: nothing shared with any table.
fn naive_crc32(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for &byte in bytes {
        for bit in 0..8 {
            let carry = (crc ^ u32::from(byte >> bit)) & 1;
            crc = (crc >> 1) ^ if carry == 1 { 0xedb8_8320 } else { 0 };
        }
    }
    !crc
}

#[test]
fn every_vector_agrees_with_two_other_crcs() {
    let crc = crc::Crc::<u32>::new(&crc::CRC_32_ISO_HDLC);
    let vectors = vectors();
    let vectors = vectors["vectors"].as_array().unwrap();
    assert!(vectors.len() >= 42);
    for vector in vectors {
        let name = vector["name"].as_str().unwrap();
        let frame = unhex(vector["frame_hex"].as_str().unwrap());
        let masked = unhex(vector["masked_input_hex"].as_str().unwrap());
        assert_eq!(verdict(&frame), Some(IcrcVerdict::Ok), "{name}");
        let wire: [u8; 4] = frame[frame.len() - 4..].try_into().unwrap();
        assert_eq!(crc.checksum(&masked).to_le_bytes(), wire, "{name}");
        assert_eq!(naive_crc32(&masked).to_le_bytes(), wire, "{name}");
    }
}

#[test]
fn every_captured_packet_is_sound() {
    let mut packets = 0;
    for path in common::captures() {
        for frame in captured_frames(&path) {
            match verdict(&frame) {
                None => {}
                found => assert_eq!(found, Some(IcrcVerdict::Ok), "{path:?} packet {packets}"),
            }
            packets += usize::from(verdict(&frame).is_some());
        }
    }
    assert_eq!(packets, 2660 + 156 + 1671, "as many as tshark finds");
}
