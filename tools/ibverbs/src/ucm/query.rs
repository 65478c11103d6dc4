//! The answers of the queries: addresses, device and path of an id.

use std::net::{IpAddr, SocketAddr};

use roce::cm::{CmId, Manager, PathRecord};
use roce::link::interface::gid;
use roce::verbs::Mtu;
use roce::wire::cm::PortSpace;
use roce::wire::{Bits, Gid, PKey};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::abi::{self, PathRecordBytes};
use super::address::{self, Address};
use super::commands::{Call, device_identity, write_program};
use crate::call::{Attempt, Failed, Result};
use crate::events::lock;
use crate::kern::KernPathRec;

/// A selector of path records: exactly this value.
const EXACTLY: u8 = 2;

/// Facts about an id that queries return.
struct Seen {
    node_guid: u64,
    device_index: u32,
    port_num: u8,
    source: Option<Address>,
    destination: Option<Address>,
    path: Option<PathRecord>,
    space: PortSpace,
}

fn look(call: &Call<'_>, manager: &Manager, id: CmId) -> Seen {
    let device = manager.device_of(id);
    let (node_guid, device_index) = device_identity(call.process, device);
    let ib = lock(&call.process.ib_binds).get(&id).copied();
    let source = manager.source(id).map(Address::Ip).or(ib);
    let destination = manager.destination(id).map(Address::Ip);
    Seen {
        node_guid,
        device_index,
        port_num: device.is_some().into(),
        source,
        destination: destination.or_else(|| source.map(|source| source.unspecified())),
        path: manager.path(id).copied(),
        space: manager.port_space(id).unwrap_or(PortSpace::TCP),
    }
}

pub(super) fn query(call: &Call<'_>) -> Result<Attempt> {
    const ADDRESS: u32 = 0;
    const PATH: u32 = 1;
    const GID: u32 = 2;
    let command: abi::Query = call.body();
    let seen = call.process.command(|manager, _| {
        let id = call.id(manager, command.id)?;
        Ok(look(call, manager, id))
    })?;
    match command.option {
        ADDRESS => query_addr(call, command.response, &seen, seen.source, seen.destination)?,
        PATH => query_path(call, command.response, &seen)?,
        GID => {
            let [source, destination] =
                [seen.source, seen.destination].map(|address| ib_address(&seen, address));
            query_addr(call, command.response, &seen, Some(source), Some(destination))?;
        }
        _ => return Err(Failed::ENOSYS),
    }
    Ok(Attempt::Done)
}

fn query_addr(
    call: &Call<'_>,
    response: u64,
    seen: &Seen,
    source: Option<Address>,
    destination: Option<Address>,
) -> Result<()> {
    if call.answer_len < abi::QUERY_ADDR_ANSWER_MIN {
        return Err(Failed::ENOSPC);
    }
    let none = ([0; 128], 0);
    let [(source, source_len), (destination, destination_len)] =
        [source, destination].map(|address| address.map_or(none, |address| address.write()));
    let answer = abi::QueryAddrAnswer {
        node_guid: seen.node_guid,
        port_num: seen.port_num,
        reserved: 0,
        // As on any Ethernet: the partition is part of the path.
        pkey: 0,
        source_len,
        destination_len,
        source,
        destination,
        device_index: seen.device_index,
        reserved_too: 0,
    };
    call.answer(response, &answer)
}

/// An address as one of InfiniBand: its GID and service id.
fn ib_address(seen: &Seen, of: Option<Address>) -> Address {
    match of {
        Some(Address::Ip(ip)) => {
            let own = if seen.port_num == 0 { [0; 16] } else { gid_of(ip.ip()) };
            address::ib(own, 0, u64::from(seen.space.0) << 16 | u64::from(ip.port()))
        }
        Some(ib @ Address::Ib(_)) => ib,
        None => address::ib([0; 16], 0, 0),
    }
}

/// A GID; of the wildcard there is none.
fn gid_of(address: IpAddr) -> [u8; 16] {
    if address.is_unspecified() { [0; 16] } else { gid(address).0 }
}

fn query_path(call: &Call<'_>, response: u64, seen: &Seen) -> Result<()> {
    let head = size_of::<abi::QueryPathAnswer>();
    let room = call.answer_len.checked_sub(head).ok_or(Failed::ENOSPC)?;
    let path_count = seen.path.is_some().into();
    write_program(response, abi::QueryPathAnswer { path_count, reserved: 0 }.as_bytes())?;
    if let Some(path) = &seen.path
        && room >= size_of::<abi::PathData>()
    {
        let record = path_bytes(path);
        let data = abi::PathData { flags: abi::PATH_FLAGS, reserved: 0, record };
        write_program(response + head as u64, data.as_bytes())?;
    }
    Ok(())
}

pub(super) fn query_route(call: &Call<'_>) -> Result<Attempt> {
    if call.answer_len < abi::QUERY_ROUTE_ANSWER_MIN {
        return Err(Failed::ENOSPC);
    }
    let command: abi::Query = call.body();
    let seen = call.process.command(|manager, _| {
        let id = call.id(manager, command.id)?;
        Ok(look(call, manager, id))
    })?;
    let [source, destination] = [seen.source, seen.destination].map(|address| match address {
        Some(ip @ Address::Ip(_)) => ip.write().0,
        _ => [0; 28],
    });
    let mut answer = abi::QueryRouteAnswer::new_zeroed();
    answer.node_guid = seen.node_guid;
    answer.source = source;
    answer.destination = destination;
    answer.port_num = seen.port_num;
    answer.device_index = seen.device_index;
    let [first, _] = &mut answer.paths;
    match (&seen.path, seen.port_num) {
        (Some(path), _) => {
            answer.path_count = 1;
            *first = kern_path(path);
        }
        // An id without a path yet reports the addresses that its path will have.
        (None, 1) => {
            [first.sgid, first.dgid] = [seen.source, seen.destination].map(|address| {
                let ip = address.and_then(|address| address.ip().ok());
                ip.map_or([0; 16], |ip: SocketAddr| gid_of(ip.ip()))
            });
        }
        _ => {}
    }
    call.answer(command.response, &answer)?;
    Ok(Attempt::Done)
}

fn kern_path(path: &PathRecord) -> KernPathRec {
    KernPathRec {
        dgid: path.dgid.0,
        sgid: path.sgid.0,
        dlid: 0,
        slid: 0,
        raw_traffic: 0,
        flow_label: path.flow_label.get().to_be(),
        reversible: 1,
        mtu: path.mtu.code(),
        pkey: path.pkey.get().to_be(),
        hop_limit: path.hop_limit,
        traffic_class: path.traffic_class,
        numb_path: 1,
        sl: low_byte(path.sl.get()),
        mtu_selector: EXACTLY,
        rate_selector: EXACTLY,
        rate: path.rate,
        packet_life_time_selector: EXACTLY,
        packet_life_time: path.packet_life_time,
        preference: 0,
    }
}

fn low_byte(number: u32) -> u8 {
    number.to_le_bytes()[0]
}

/// The path record of a path, as in a MAD.
fn path_bytes(path: &PathRecord) -> PathRecordBytes {
    const REVERSIBLE: u8 = 0x80;
    let exactly = |value: u8| EXACTLY << 6 | (value & 0x3f);
    let mut record = PathRecordBytes::new_zeroed();
    record.dgid = path.dgid.0;
    record.sgid = path.sgid.0;
    record.flow_label_hop_limit =
        (path.flow_label.get() << 8 | u32::from(path.hop_limit)).to_be_bytes();
    record.traffic_class = path.traffic_class;
    record.reversible_path_count = REVERSIBLE | 1;
    record.pkey = path.pkey.get().to_be_bytes();
    record.qos_class_sl = [0, low_byte(path.sl.get())];
    record.mtu = exactly(low_byte(path.mtu.code()));
    record.rate = exactly(path.rate);
    record.life_time = exactly(path.packet_life_time);
    record
}

/// The path that a program gives an id in place of one that is resolved: the first that is used
/// both ways.
pub(super) fn read_paths(value: &[u8]) -> Result<PathRecord> {
    let (paths, rest) = value.as_chunks::<{ size_of::<abi::PathData>() }>();
    if !rest.is_empty() {
        return Err(Failed::EINVAL);
    }
    let paths = paths.iter().filter_map(|bytes| abi::PathData::read_from_bytes(bytes).ok());
    let path = paths.into_iter().find(|path| path.flags == abi::PATH_FLAGS);
    let record = path.ok_or(Failed::EINVAL)?.record;
    let PathRecordBytes { dgid, sgid, pkey, qos_class_sl, .. } = record;
    let flow = u32::from_be_bytes(record.flow_label_hop_limit);
    Ok(PathRecord {
        sgid: Gid(sgid),
        dgid: Gid(dgid),
        flow_label: Bits::low(flow >> 8),
        hop_limit: low_byte(flow),
        traffic_class: record.traffic_class,
        pkey: PKey::new(u16::from_be_bytes(pkey)),
        sl: Bits::low(u16::from_be_bytes(qos_class_sl).into()),
        mtu: Mtu::from_code((record.mtu & 0x3f).into()).ok_or(Failed::EINVAL)?,
        rate: record.rate & 0x3f,
        packet_life_time: record.life_time & 0x3f,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_read_as_they_are_told() {
        let path = PathRecord {
            sgid: gid("10.9.0.1".parse().unwrap()),
            dgid: gid("fd00::2".parse().unwrap()),
            flow_label: Bits::low(0xbcc01),
            hop_limit: 64,
            traffic_class: 0x68,
            pkey: PKey::DEFAULT,
            sl: Bits::low(5),
            mtu: Mtu::M1024,
            rate: 3,
            packet_life_time: 16,
        };
        let whole = |flags| {
            let data = abi::PathData { flags, reserved: 0, record: path_bytes(&path) };
            data.as_bytes().to_vec()
        };
        let other = whole(1);
        assert_eq!(read_paths(&other), Err(Failed::EINVAL), "no path that is used both ways");
        let both = [other, whole(abi::PATH_FLAGS)].concat();
        assert_eq!(read_paths(&both), Ok(path));
        assert_eq!(read_paths(&both[..143]), Err(Failed::EINVAL), "not a whole number of them");
        assert_eq!(read_paths(&[]), Err(Failed::EINVAL));
        let kern = kern_path(&path);
        assert_eq!((kern.flow_label, kern.mtu, kern.sl), (0xbcc01_u32.to_be(), 3, 5));
    }
}
