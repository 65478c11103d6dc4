//! `RDMA_NL_NLDEV`: what the kernel tells of RDMA devices, ports and counters, as `rdma dev`,
//! `rdma link` and `rdma statistic` of iproute2 ask for it.

use std::ffi::c_int;

use roce::verbs::{PhysState, PortAttr, PortState};

use super::message::{Answers, Attributes, Request};

/// Subsystem of devices among the clients of `NETLINK_RDMA`.
const CLIENT_NLDEV: u16 = 5;

// Commands of `rdma/rdma_netlink.h`.
const GET: u16 = 1;
const PORT_GET: u16 = 5;
const SYS_GET: u16 = 6;
const STAT_GET: u16 = 17;

// Attributes of `rdma/rdma_netlink.h`.
const DEV_INDEX: u16 = 1;
const DEV_NAME: u16 = 2;
const PORT_INDEX: u16 = 3;
const CAP_FLAGS: u16 = 4;
const FW_VERSION: u16 = 5;
const NODE_GUID: u16 = 6;
const SYS_IMAGE_GUID: u16 = 7;
const PORT_STATE: u16 = 12;
const PORT_PHYS_STATE: u16 = 13;
const DEV_NODE_TYPE: u16 = 14;
const NDEV_INDEX: u16 = 50;
const NDEV_NAME: u16 = 51;
const SYS_NETNS_MODE: u16 = 66;
const DEV_PROTOCOL: u16 = 67;
const STAT_HWCOUNTERS: u16 = 80;
const STAT_HWCOUNTER_ENTRY: u16 = 81;
const STAT_HWCOUNTER_ENTRY_NAME: u16 = 82;
const STAT_HWCOUNTER_ENTRY_VALUE: u16 = 83;

/// The only port of a device.
const PORT: u32 = 1;

/// A device, as netlink tells of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Device {
    pub(super) index: u32,
    pub(super) name: String,
    pub(super) guid: u64,
    pub(super) state: PortState,
    /// Index and name of the network interface.
    pub(super) interface: Option<(u32, String)>,
    pub(super) counters: Vec<(String, u64)>,
}

/// Answers all that a program sent.
pub(super) fn answer(sent: &[u8], port_id: u32, devices: &[Device]) -> Vec<Vec<u8>> {
    let mut answers = Answers::new(port_id);
    let mut rest = sent;
    while let Some(request) = Request::take(&mut rest) {
        if request.is_request() {
            answers.answer(&request, objects(&request, devices));
        }
    }
    answers.into_datagrams()
}

/// The objects that a request asks for, or the error number that the kernel gives for what is not
/// there.
fn objects(request: &Request<'_>, devices: &[Device]) -> Result<Vec<Attributes>, c_int> {
    let (client, command) = (request.kind >> 10, request.kind & 0x3ff);
    if client != CLIENT_NLDEV {
        return Err(libc::EINVAL);
    }
    let describe = match command {
        GET => device,
        PORT_GET => port,
        STAT_GET => counters,
        SYS_GET => return Ok(vec![system()]),
        _ => return Err(libc::EOPNOTSUPP),
    };
    let wanted = request.number(DEV_INDEX);
    // Ports are listed of one device only.
    if request.is_dump() && (wanted.is_none() || command == GET) {
        let is_of_port = command == PORT_GET;
        return if is_of_port {
            Err(libc::EINVAL)
        } else {
            Ok(devices.iter().map(describe).collect())
        };
    }
    let wanted = wanted.ok_or(libc::EINVAL)?;
    let found = devices.iter().find(|device| device.index == wanted).ok_or(libc::EINVAL)?;
    if command != GET && request.number(PORT_INDEX).is_some_and(|port| port != PORT) {
        return Err(libc::EINVAL);
    }
    Ok(vec![describe(found)])
}

/// Attributes by which any answer names its device.
fn handle(device: &Device) -> Attributes {
    let mut to = Attributes::default();
    to.word(DEV_INDEX, device.index);
    to.text(DEV_NAME, &device.name);
    to
}

fn device(device: &Device) -> Attributes {
    const CHANNEL_ADAPTER: u8 = 1;
    let mut to = handle(device);
    // The number of ports.
    to.word(PORT_INDEX, PORT);
    to.long(CAP_FLAGS, 0);
    to.text(FW_VERSION, env!("CARGO_PKG_VERSION"));
    to.long(NODE_GUID, device.guid);
    to.long(SYS_IMAGE_GUID, device.guid);
    to.byte(DEV_NODE_TYPE, CHANNEL_ADAPTER);
    to.text(DEV_PROTOCOL, "roce");
    to
}

fn port(device: &Device) -> Attributes {
    let mut to = handle(device);
    to.word(PORT_INDEX, PORT);
    to.long(CAP_FLAGS, PortAttr::default().port_cap_flags.bits().into());
    let physical = match device.state {
        PortState::Active => PhysState::LinkUp,
        _ => PhysState::Disabled,
    };
    to.byte(PORT_STATE, byte(device.state.code()));
    to.byte(PORT_PHYS_STATE, byte(physical.code()));
    if let Some((index, name)) = &device.interface {
        to.word(NDEV_INDEX, *index);
        to.text(NDEV_NAME, name);
    }
    to
}

fn byte(code: u32) -> u8 {
    u8::try_from(code).unwrap_or(u8::MAX)
}

fn counters(device: &Device) -> Attributes {
    let mut to = handle(device);
    to.word(PORT_INDEX, PORT);
    to.nested(STAT_HWCOUNTERS, |all| {
        for (name, value) in &device.counters {
            all.nested(STAT_HWCOUNTER_ENTRY, |entry| {
                entry.text(STAT_HWCOUNTER_ENTRY_NAME, name);
                entry.long(STAT_HWCOUNTER_ENTRY_VALUE, *value);
            });
        }
    });
    to
}

/// Devices are seen in every network namespace.
fn system() -> Attributes {
    const SHARED: u8 = 1;
    let mut to = Attributes::default();
    to.byte(SYS_NETNS_MODE, SHARED);
    to
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: u16 = 1;
    const ACK: u16 = 4;
    const DUMP: u16 = 0x300;

    fn devices() -> Vec<Device> {
        let device = |index, name: &str| Device {
            index,
            name: name.to_owned(),
            guid: 7,
            state: PortState::Active,
            interface: Some((3, "eth0".to_owned())),
            counters: vec![("sent_pkts".to_owned(), 5)],
        };
        vec![device(0, "roce0"), device(1, "roce1")]
    }

    fn request(command: u16, flags: u16, numbers: &[(u16, u32)]) -> Vec<u8> {
        let mut attributes = Vec::new();
        for (kind, value) in numbers {
            attributes.extend(8_u16.to_ne_bytes());
            attributes.extend(kind.to_ne_bytes());
            attributes.extend(value.to_ne_bytes());
        }
        let len = u32::try_from(16 + attributes.len()).unwrap();
        let kind = CLIENT_NLDEV << 10 | command;
        let mut bytes = len.to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(99_u32.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend(attributes);
        bytes
    }

    /// Type, sequence number, port id and body of each message.
    fn messages(datagrams: &[Vec<u8>]) -> Vec<(u16, u32, u32, Vec<u8>)> {
        let word = |bytes: &[u8], at: usize| {
            u32::from_ne_bytes(*bytes.get(at..).unwrap().first_chunk().unwrap())
        };
        let mut all = Vec::new();
        for datagram in datagrams {
            let mut rest = &datagram[..];
            while !rest.is_empty() {
                let (message, after) = rest.split_at(word(rest, 0) as usize);
                let kind = u16::from_ne_bytes([message[4], message[5]]);
                all.push((kind, word(message, 8), word(message, 12), message[16..].to_vec()));
                rest = &after[after.len().min(message.len().next_multiple_of(4) - message.len())..];
            }
        }
        all
    }

    fn has(body: &[u8], text: &str) -> bool {
        body.windows(text.len()).any(|part| part == text.as_bytes())
    }

    #[test]
    fn dump_lists_every_device_and_ends() {
        let datagrams = answer(&request(GET, REQUEST | ACK | DUMP, &[]), 42, &devices());
        let all = messages(&datagrams);
        let kind = CLIENT_NLDEV << 10 | GET;
        assert_eq!(all.iter().map(|it| it.0).collect::<Vec<_>>(), [kind, kind, 3]);
        assert!(all.iter().all(|(_, sequence, port_id, _)| (*sequence, *port_id) == (99, 42)));
        assert!(has(&all[0].3, "roce0\0") && has(&all[1].3, "roce1\0"));
    }

    #[test]
    fn one_port_is_answered_and_acknowledged() {
        let asked = request(PORT_GET, REQUEST | ACK, &[(DEV_INDEX, 1), (PORT_INDEX, 1)]);
        let all = messages(&answer(&asked, 42, &devices()));
        assert_eq!(all.len(), 2);
        assert!(has(&all[0].3, "roce1\0") && has(&all[0].3, "eth0\0"));
        assert_eq!((all[1].0, &all[1].3[..4]), (2, &0_i32.to_ne_bytes()[..]));
        let asked = request(STAT_GET, REQUEST, &[(DEV_INDEX, 0), (PORT_INDEX, 1)]);
        let all = messages(&answer(&asked, 42, &devices()));
        assert!(all.len() == 1 && has(&all[0].3, "sent_pkts\0"));
    }

    #[test]
    fn what_is_not_there_is_an_error() {
        for (asked, errno) in [
            (request(GET, REQUEST, &[(DEV_INDEX, 9)]), libc::EINVAL),
            (request(PORT_GET, REQUEST, &[(DEV_INDEX, 0), (PORT_INDEX, 2)]), libc::EINVAL),
            (request(2, REQUEST, &[(DEV_INDEX, 0)]), libc::EOPNOTSUPP),
            (request(0x3ff, REQUEST | DUMP, &[]), libc::EOPNOTSUPP),
        ] {
            let all = messages(&answer(&asked, 42, &devices()));
            assert_eq!(all.len(), 1);
            assert_eq!((all[0].0, &all[0].3[..4]), (2, &(-errno).to_ne_bytes()[..]));
        }
    }

    #[test]
    fn broken_requests_are_not_answered() {
        let whole = request(GET, REQUEST, &[(DEV_INDEX, 0)]);
        for len in 0..whole.len() {
            assert!(answer(&whole[..len], 42, &devices()).is_empty(), "{len}");
        }
        let mut long = whole.clone();
        long[..4].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert!(answer(&long, 42, &devices()).is_empty());
        let mut short = whole;
        short[..4].copy_from_slice(&3_u32.to_ne_bytes());
        assert!(answer(&short, 42, &devices()).is_empty());
        // An attribute of no length ends the list.
        let mut empty = request(PORT_GET, REQUEST, &[(DEV_INDEX, 0)]);
        empty[16..18].copy_from_slice(&0_u16.to_ne_bytes());
        assert_eq!(answer(&empty, 42, &devices()).len(), 1);
        assert!(answer(&request(GET, 0, &[]), 42, &devices()).is_empty(), "not a request");
    }
}
