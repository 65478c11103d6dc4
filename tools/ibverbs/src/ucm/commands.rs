//! The table of commands, and their handlers.
//!
//! Checks and error numbers are those of Linux's `ucma.c`. No command trusts a pointer or a length
//! of the program: what cannot be read or written fails with `EFAULT`.

use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use roce::cm::{
    ChannelId, CmId, ConnParam, DeviceId, Ece, IdOption, IdState, JoinMode, Manager, RejectReason,
};
use roce::device::Device as _;
use roce::ibverbs::ibv_qp_attr;
use roce::memory::Region;
use roce::verbs::{AttrMask, EventType, QpState, QpType};
use roce::wire::Qpn;
use roce::wire::cm::PortSpace;
use zerocopy::{FromBytes, FromZeros as _, Immutable, IntoBytes};

use super::address::Address;
use super::channel::{self, Channel, Target};
use super::{Process, abi, devices, events, local, query};
use crate::call::{Attempt, Failed, Result};
use crate::events::lock;
use crate::kern::KernQpAttr;

/// Function of a command, which says whether it is done.
type Handler = fn(&Call<'_>) -> Result<Attempt>;

/// The commands, by number. GET_OPTION was never implemented.
const COMMANDS: [Option<Handler>; 23] = [
    Some(create_id),
    Some(destroy_id),
    Some(bind_ip),
    Some(resolve_ip),
    Some(resolve_route),
    Some(query::query_route),
    Some(connect),
    Some(listen),
    Some(accept),
    Some(reject),
    Some(disconnect),
    Some(init_qp_attr),
    Some(events::get_event),
    None,
    Some(set_option),
    Some(notify),
    Some(join_ip_multicast),
    Some(leave_multicast),
    Some(migrate_id),
    Some(query::query),
    Some(bind),
    Some(resolve_addr),
    Some(join_multicast),
];

/// The longest body of a command.
const BODY_MAX: usize = size_of::<abi::Accept>();

/// A command that was written.
pub(super) struct Call<'a> {
    pub(super) process: &'static Process,
    pub(super) channel: &'a Arc<Channel>,
    /// Descriptor that it was written to.
    pub(super) fd: c_int,
    /// Whether it has just waited for the descriptor.
    pub(super) has_waited: bool,
    body: &'a [u8],
    /// Length of the room for an answer.
    pub(super) answer_len: usize,
}

/// Executes a command that was written to a channel.
pub(super) fn write(
    target: Target,
    fd: c_int,
    bytes: *const c_void,
    len: usize,
    has_waited: bool,
) -> Result<Attempt> {
    let (process, channel) = channel::channel(target)?;
    let mut header = abi::Header::new_zeroed();
    let header_len = size_of::<abi::Header>();
    if len < header_len {
        return Err(Failed::EINVAL);
    }
    let start = bytes.expose_provenance() as u64;
    read_program(start, header.as_mut_bytes())?;
    let number = usize::try_from(header.command).map_err(|_| Failed::EINVAL)?;
    let handler = COMMANDS.get(number).ok_or(Failed::EINVAL)?;
    if usize::from(header.body_len) + header_len > len {
        return Err(Failed::EINVAL);
    }
    let handler = handler.ok_or(Failed::ENOSYS)?;
    let mut body = [0; BODY_MAX];
    let body = body.get_mut(..usize::from(header.body_len).min(BODY_MAX)).unwrap_or_default();
    read_program(start + header_len as u64, body)?;
    let answer_len = usize::from(header.answer_len);
    handler(&Call { process, channel: &channel, fd, has_waited, body, answer_len })
}

/// Copies memory of the program.
fn read_program(from: u64, to: &mut [u8]) -> Result<()> {
    program(from, to.len())?.read(0, to).map_err(|_| Failed::EFAULT)
}

/// Copies to memory of the program.
pub(super) fn write_program(to: u64, from: &[u8]) -> Result<()> {
    program(to, from.len())?.write(0, from).map_err(|_| Failed::EFAULT)
}

/// Memory that the program says is there.
fn program(start: u64, len: usize) -> Result<Region> {
    let start = usize::try_from(start).map_err(|_| Failed::EFAULT)?;
    start.checked_add(len).ok_or(Failed::EFAULT)?;
    // SAFETY: the program hands over memory of its own, to which this library has no references;
    // accesses to what is not there fail.
    Ok(unsafe { Region::foreign(std::ptr::with_exposed_provenance_mut(start), len) })
}

impl Call<'_> {
    /// The command. What an older program does not know of it is zero.
    pub(super) fn body<T: FromBytes + IntoBytes + Immutable>(&self) -> T {
        let mut command = T::new_zeroed();
        command.as_mut_bytes().iter_mut().zip(self.body).for_each(|(to, from)| *to = *from);
        command
    }

    /// Fails unless there is room for an answer.
    fn require_room<T>(&self) -> Result<()> {
        if self.answer_len < size_of::<T>() { Err(Failed::ENOSPC) } else { Ok(()) }
    }

    /// Answers, as far as there is room.
    pub(super) fn answer<T: IntoBytes + Immutable>(&self, to: u64, answer: &T) -> Result<()> {
        let bytes = answer.as_bytes();
        write_program(to, bytes.get(..self.answer_len).unwrap_or(bytes))
    }

    /// The id of this channel with this number.
    pub(super) fn id(&self, manager: &Manager, number: u32) -> Result<CmId> {
        own_id(manager, self.channel.id, number)
    }

    /// Returns the id, which must have a device.
    fn id_with_device(&self, manager: &Manager, number: u32) -> Result<CmId> {
        let id = self.id(manager, number)?;
        manager.device_of(id).map(|_| id).ok_or(Failed::EINVAL)
    }
}

/// The id of a channel with this number.
fn own_id(manager: &Manager, channel: ChannelId, number: u32) -> Result<CmId> {
    let id = CmId::from_number(number);
    match manager.channel_of(id) {
        None => Err(Failed::ENOENT),
        Some(own) if own == channel => Ok(id),
        Some(_) => Err(Failed::EINVAL),
    }
}

fn create_id(call: &Call<'_>) -> Result<Attempt> {
    call.require_room::<abi::IdAnswer>()?;
    let command: abi::CreateId = call.body();
    let qp_type = QpType::from_code(command.qp_type.into());
    let space = PortSpace(command.space);
    let qp_type = match space {
        PortSpace::IB => qp_type.ok_or(Failed::EINVAL)?,
        // It follows from the space.
        _ => qp_type.unwrap_or(QpType::Rc),
    };
    let id = call.process.command(|manager, _| {
        Ok(manager.create_id(call.channel.id, command.uid, space, qp_type)?)
    })?;
    let answered = call.answer(command.response, &abi::IdAnswer { id: id.number() });
    if answered.is_err() {
        call.process.command(|manager, now| Ok(manager.destroy_id(now, id)?))?;
    }
    answered.map(|()| Attempt::Done)
}

fn destroy_id(call: &Call<'_>) -> Result<Attempt> {
    call.require_room::<abi::EventsAnswer>()?;
    let command: abi::DestroyId = call.body();
    let (id, destroyed) = call.process.command(|manager, now| {
        let id = call.id(manager, command.id)?;
        let destroyed = manager.destroy_id(now, id)?;
        call.channel.settle(manager.is_readable(call.channel.id), call.fd);
        Ok((id, destroyed))
    })?;
    call.process.forget(id);
    let events_reported = destroyed.events_reported;
    call.answer(command.response, &abi::EventsAnswer { events_reported })?;
    Ok(Attempt::Done)
}

fn bind_ip(call: &Call<'_>) -> Result<Attempt> {
    let command: abi::BindIp = call.body();
    bind_to(call, command.id, Address::read(&command.address)?)
}

fn bind(call: &Call<'_>) -> Result<Attempt> {
    let command: abi::Bind = call.body();
    if command.reserved != 0 {
        return Err(Failed::EINVAL);
    }
    bind_to(call, command.id, Address::read_sized(&command.address, command.address_len)?)
}

fn bind_to(call: &Call<'_>, number: u32, address: Address) -> Result<Attempt> {
    let process = call.process;
    let id = process.command(|manager, _| {
        let id = call.id(manager, number)?;
        require_state(manager, id, &[IdState::Idle])?;
        Ok(id)
    })?;
    if let Address::Ib(_) = address {
        // The library only tries whether the kernel knows such addresses.
        if !address.is_wildcard() {
            return Err(Failed::ENODEV);
        }
        lock(&process.ib_binds).insert(id, address);
        return Ok(Attempt::Done);
    }
    let address = address.ip()?;
    if !address.ip().is_unspecified() {
        match process.nics.open_at(process, address.ip()) {
            // A loopback address that no NIC of this process has is a wildcard, as on Linux. Where
            // another process has it, only a program that asks for no port in particular can do
            // without that address.
            Err(failed) if address.ip().is_loopback() => {
                if failed.0 == libc::EADDRINUSE && address.port() != 0 {
                    return Err(failed);
                }
            }
            opened => opened?,
        }
    }
    process.service.bind(id, address).map_err(|_| Failed::ENODEV)??;
    Ok(Attempt::Done)
}

fn require_state(manager: &Manager, id: CmId, states: &[IdState]) -> Result<()> {
    match manager.id_state(id) {
        Some(state) if states.contains(&state) => Ok(()),
        _ => Err(Failed::EINVAL),
    }
}

fn resolve_ip(call: &Call<'_>) -> Result<Attempt> {
    let command: abi::ResolveIp = call.body();
    let has_source = command.source.first_chunk().is_some_and(|family| *family != [0, 0]);
    let source = if has_source { Some(Address::read(&command.source)?) } else { None };
    let destination = Address::read(&command.destination)?;
    resolve(call, command.id, source, destination, command.timeout_ms)
}

fn resolve_addr(call: &Call<'_>) -> Result<Attempt> {
    let command: abi::ResolveAddr = call.body();
    if command.reserved != 0 {
        return Err(Failed::EINVAL);
    }
    let source = match command.source_len {
        0 => None,
        len => Some(Address::read_sized(&command.source, len)?),
    };
    let destination = Address::read_sized(&command.destination, command.destination_len)?;
    resolve(call, command.id, source, destination, command.timeout_ms)
}

fn resolve(
    call: &Call<'_>,
    number: u32,
    source: Option<Address>,
    destination: Address,
    timeout_ms: u32,
) -> Result<Attempt> {
    let process = call.process;
    let (id, bound, is_on_device) = process.command(|manager, _| {
        let id = call.id(manager, number)?;
        require_state(manager, id, &[IdState::Idle, IdState::AddrBound])?;
        Ok((id, manager.source(id), manager.device_of(id).is_some()))
    })?;
    let source = source.map(Address::ip).transpose()?;
    // Of an id that is bound already, the source is ignored.
    let from = match bound {
        Some(bound) => is_on_device.then_some(bound.ip()),
        None => source.map(|source| source.ip()).filter(|ip| !ip.is_unspecified()),
    };
    let opened = from.map(|from| process.nics.open_at(process, from));
    let from = match (from, opened) {
        (Some(from), Some(Err(_))) if from.is_loopback() => None,
        (from, opened) => opened.transpose().map(|_| from)?,
    };
    let family = bound.or(source).map(|address| address.is_ipv4());
    let destination = local::destination(process, destination.ip()?, family)?;
    process.nics.open_towards(process, destination, from)?;
    process.command(|manager, now| {
        let timeout = Duration::from_millis(timeout_ms.into());
        Ok(manager.resolve_addr(now, id, unless_wildcard(source), destination, timeout)?)
    })?;
    Ok(Attempt::Done)
}

/// A source that names an address or at least a port.
fn unless_wildcard(source: Option<SocketAddr>) -> Option<SocketAddr> {
    source.filter(|source| !source.ip().is_unspecified() || source.port() != 0)
}

fn resolve_route(call: &Call<'_>) -> Result<Attempt> {
    let command: abi::ResolveRoute = call.body();
    call.process.command(|manager, _| {
        let id = call.id_with_device(manager, command.id)?;
        Ok(manager.resolve_route(id, Duration::from_millis(command.timeout_ms.into()))?)
    })?;
    Ok(Attempt::Done)
}

fn ece_of(ece: &abi::Ece) -> Ece {
    Ece { vendor_id: ece.vendor_id, options: ece.options }
}

/// Converts the parameters of a program's side of a connection.
fn conn_param(param: &abi::ConnParam, ece: Ece) -> Result<ConnParam<'_>> {
    let private_data = param.private_data.get(..param.private_data_len.into());
    Ok(ConnParam {
        private_data: private_data.ok_or(Failed::EINVAL)?,
        qpn: Qpn::new(param.qpn),
        srq: param.srq != 0,
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
        flow_control: param.flow_control != 0,
        retry_count: param.retry_count,
        rnr_retry_count: param.rnr_retry_count,
        ece,
        selective_repeat: false,
    })
}

/// Whether a program may connect this queue pair with selective repeat: it is reliable, and of a
/// device that does it. UCX connects by the number of a datagram queue pair, which is not.
fn offers_selective_repeat(process: &Process, manager: &Manager, id: CmId, qpn: Qpn) -> bool {
    let nic = manager.device_of(id).and_then(|device| process.nics.nic(device));
    nic.is_some_and(|nic| {
        let kind = nic.qp_by_number(qpn).and_then(|qp| nic.qp_kind(qp));
        nic.offers_selective_repeat() && kind == Some(QpType::Rc)
    })
}

/// Agrees on selective repeat for the queue pair of an id, if the peer does it, too; returns
/// whether it is used. The queue pair must be connected to the peer already, as it is when
/// librdmacm accepts or establishes: otherwise the program may connect it to another peer, which
/// has not agreed.
fn agree_selective_repeat(process: &Process, manager: &Manager, id: CmId, qpn: Qpn) -> bool {
    let nic = manager.device_of(id).and_then(|device| process.nics.nic(device));
    let Some((nic, (wanted, _))) = nic.zip(manager.qp_attr(id, QpState::Rtr).ok()) else {
        return false;
    };
    let Some(qp) = nic.qp_by_number(qpn) else { return false };
    let is_connected = nic.query_qp(qp).is_some_and(|attr| {
        matches!(attr.qp_state, QpState::Rtr | QpState::Rts)
            && attr.dest_qp_num == wanted.dest_qp_num
            && attr.ah_attr.dgid == wanted.ah_attr.dgid
    });
    is_connected && nic.agree_selective_repeat(qp, manager.selective_repeat(id))
}

fn connect(call: &Call<'_>) -> Result<Attempt> {
    let command: abi::Connect = call.body();
    if command.param.valid == 0 {
        return Err(Failed::EINVAL);
    }
    let mut param = conn_param(&command.param, ece_of(&command.ece))?;
    let destination = call.process.command(|manager, _| {
        let id = call.id_with_device(manager, command.id)?;
        let destination = manager.destination(id).map(|destination| destination.ip());
        Ok(destination.filter(|address| manager.device_at(*address).is_none()))
    })?;
    let now = call.process.service.now();
    let is_absent =
        destination.is_some_and(|address| lock(&call.process.presence).is_absent(now, address));
    call.process.command(|manager, now| {
        let id = call.id_with_device(manager, command.id)?;
        param.selective_repeat = offers_selective_repeat(call.process, manager, id, param.qpn);
        manager.connect(now, id, &param)?;
        if is_absent {
            manager.refuse_absent(id)?;
        }
        Ok(())
    })?;
    Ok(Attempt::Done)
}

fn listen(call: &Call<'_>) -> Result<Attempt> {
    let command: abi::Listen = call.body();
    let process = call.process;
    let (id, is_wildcard) = process.command(|manager, _| {
        let id = call.id(manager, command.id)?;
        require_state(manager, id, &[IdState::Idle, IdState::AddrBound])?;
        // An id that is bound to a wildcard is on no device.
        Ok((id, manager.device_of(id).is_none()))
    })?;
    if is_wildcard {
        // Requests reach open NICs only.
        process.nics.open_all(process)?;
    }
    process.service.listen(id, command.backlog).map_err(|_| Failed::ENODEV)??;
    Ok(Attempt::Done)
}

fn accept(call: &Call<'_>) -> Result<Attempt> {
    let command: abi::Accept = call.body();
    let mut param = conn_param(&command.param, ece_of(&command.ece))?;
    call.process.command(|manager, now| {
        let id = call.id_with_device(manager, command.id)?;
        if command.param.valid == 0 {
            if let Some(qpn) = manager.local_qpn(id) {
                agree_selective_repeat(call.process, manager, id, qpn);
            }
            return Ok(manager.establish(id)?);
        }
        param.selective_repeat = agree_selective_repeat(call.process, manager, id, param.qpn);
        Ok(manager.accept(now, id, command.uid, &param)?)
    })?;
    Ok(Attempt::Done)
}

fn reject(call: &Call<'_>) -> Result<Attempt> {
    let command: abi::Reject = call.body();
    let reason = [RejectReason::Consumer, RejectReason::VendorOption]
        .into_iter()
        .find(|reason| command.reason == 0 || u16::from(command.reason) == *reason as u16);
    let reason = reason.ok_or(Failed::EINVAL)?;
    let private_data = command.private_data.get(..command.private_data_len.into());
    let private_data = private_data.ok_or(Failed::EINVAL)?;
    call.process.command(|manager, now| {
        let id = call.id_with_device(manager, command.id)?;
        Ok(manager.reject(now, id, reason, private_data)?)
    })?;
    Ok(Attempt::Done)
}

fn disconnect(call: &Call<'_>) -> Result<Attempt> {
    let command: abi::Disconnect = call.body();
    call.process.command(|manager, now| {
        let id = call.id_with_device(manager, command.id)?;
        Ok(manager.disconnect(now, id)?)
    })?;
    Ok(Attempt::Done)
}

fn init_qp_attr(call: &Call<'_>) -> Result<Attempt> {
    call.require_room::<KernQpAttr>()?;
    let command: abi::InitQpAttr = call.body();
    let state = QpState::from_code(command.qp_state).ok_or(Failed::EINVAL)?;
    let (attr, mask) = call.process.command(|manager, _| {
        let id = call.id_with_device(manager, command.id)?;
        Ok(manager.qp_attr(id, state)?)
    })?;
    let mut attr = ibv_qp_attr::from(&attr);
    // What does not count is zero.
    if !mask.contains(AttrMask::PATH_MTU) {
        attr.path_mtu = 0;
    }
    if !mask.contains(AttrMask::AV) {
        attr.ah_attr = ibv_qp_attr::zeroed().ah_attr;
    }
    let attr = KernQpAttr::new(mask.bits(), &attr);
    call.answer(command.response, &attr)?;
    Ok(Attempt::Done)
}

fn notify(call: &Call<'_>) -> Result<Attempt> {
    let command: abi::Notify = call.body();
    call.process.command(|manager, _| {
        let id = call.id_with_device(manager, command.id)?;
        let event = EventType::from_code(command.event).ok_or(Failed::EINVAL)?;
        Ok(manager.notify(id, event)?)
    })?;
    Ok(Attempt::Done)
}

/// The longest value of an option: a few paths.
const OPTION_MAX: usize = 4096;

fn set_option(call: &Call<'_>) -> Result<Attempt> {
    let command: abi::SetOption = call.body();
    call.process.command(|manager, _| call.id(manager, command.id))?;
    let len = usize::try_from(command.len).map_err(|_| Failed::EINVAL)?;
    let mut value = [0; OPTION_MAX];
    let value = value.get_mut(..len).ok_or(Failed::EINVAL)?;
    read_program(command.value, value)?;
    let option = option(command.level, command.name, value)?;
    call.process.command(|manager, _| {
        let id = call.id(manager, command.id)?;
        if let IdOption::Path(_) = option {
            manager.device_of(id).ok_or(Failed::EINVAL)?;
        }
        Ok(manager.set_option(id, option)?)
    })?;
    Ok(Attempt::Done)
}

/// The option that a program means.
fn option(level: u32, name: u32, value: &[u8]) -> Result<IdOption> {
    const LEVEL_ID: u32 = 0;
    const LEVEL_IB: u32 = 1;
    let byte = || if let [byte] = value { Ok(*byte) } else { Err(Failed::EINVAL) };
    let flag = || -> Result<bool> {
        let number: [u8; 4] = value.try_into().map_err(|_| Failed::EINVAL)?;
        Ok(c_int::from_ne_bytes(number) != 0)
    };
    match (level, name) {
        (LEVEL_ID, 0) => Ok(IdOption::Tos(byte()?)),
        (LEVEL_ID, 1) => Ok(IdOption::ReuseAddr(flag()?)),
        (LEVEL_ID, 2) => Ok(IdOption::AfOnly(flag()?)),
        (LEVEL_ID, 3) => Ok(IdOption::AckTimeout(byte()?)),
        (LEVEL_IB, 1) => Ok(IdOption::Path(query::read_paths(value)?)),
        _ => Err(Failed::ENOSYS),
    }
}

fn join_ip_multicast(call: &Call<'_>) -> Result<Attempt> {
    let command: abi::JoinIpMulticast = call.body();
    let address = Address::read(&command.address)?;
    join(call, command.id, address, JoinMode::FullMember, command.uid, command.response)
}

fn join_multicast(call: &Call<'_>) -> Result<Attempt> {
    let command: abi::JoinMulticast = call.body();
    let address = Address::read_sized(&command.address, command.address_len)?;
    let mode = match command.join_flags {
        0 => JoinMode::FullMember,
        1 => JoinMode::SendOnly,
        _ => return Err(Failed::EINVAL),
    };
    join(call, command.id, address, mode, command.uid, command.response)
}

/// Error number of Linux for a group of another family; the C library has no name for it.
const ENOTSUPP: c_int = 524;

fn join(
    call: &Call<'_>,
    number: u32,
    address: Address,
    mode: JoinMode,
    uid: u64,
    response: u64,
) -> Result<Attempt> {
    call.require_room::<abi::IdAnswer>()?;
    let group = address.ip()?.ip();
    let (id, membership) = call.process.command(|manager, _| {
        let id = call.id_with_device(manager, number)?;
        if manager.source(id).is_some_and(|source| source.is_ipv4() != group.is_ipv4()) {
            return Err(Failed(ENOTSUPP));
        }
        let membership = lock(&call.process.memberships).insert(id, group, uid)?;
        if let Err(error) = manager.join(id, group, mode, uid) {
            lock(&call.process.memberships).remove(membership);
            return Err(error.into());
        }
        Ok((id, membership))
    })?;
    let answered = call.answer(response, &abi::IdAnswer { id: membership });
    if answered.is_err() {
        lock(&call.process.memberships).remove(membership);
        call.process.command(|manager, _| Ok(manager.leave(id, group)?))?;
    }
    answered.map(|()| Attempt::Done)
}

fn leave_multicast(call: &Call<'_>) -> Result<Attempt> {
    call.require_room::<abi::EventsAnswer>()?;
    let command: abi::DestroyId = call.body();
    let events_reported = call.process.command(|manager, _| {
        let mut memberships = lock(&call.process.memberships);
        let membership = memberships.get(command.id).ok_or(Failed::ENOENT)?;
        own_id(manager, call.channel.id, membership.id.number())?;
        let reported = membership.events_reported;
        manager.leave(membership.id, membership.group)?;
        memberships.remove(command.id);
        drop(memberships);
        call.channel.settle(manager.is_readable(call.channel.id), call.fd);
        Ok(reported)
    })?;
    call.answer(command.response, &abi::EventsAnswer { events_reported })?;
    Ok(Attempt::Done)
}

/// Moves an id to the channel that the command was written to.
fn migrate_id(call: &Call<'_>) -> Result<Attempt> {
    call.require_room::<abi::EventsAnswer>()?;
    let command: abi::MigrateId = call.body();
    let fd = c_int::try_from(command.fd).map_err(|_| Failed::ENOENT)?;
    if super::interpose::file_of(fd).is_err() {
        return Err(Failed::ENOENT);
    }
    let (_, from) = channel::channel(match channel::target(fd) {
        Target::Other => return Err(Failed::EINVAL),
        target => target,
    })?;
    let events_reported = call.process.command(|manager, _| {
        let id = own_id(manager, from.id, command.id)?;
        let reported = manager.migrate_id(id, call.channel.id)?;
        from.settle(manager.is_readable(from.id), fd);
        Ok(reported)
    })?;
    call.answer(command.response, &abi::EventsAnswer { events_reported })?;
    Ok(Attempt::Done)
}

/// The device of an id, as the library knows it: GUID and index.
pub(super) fn device_identity(process: &Process, device: Option<DeviceId>) -> (u64, u32) {
    device.and_then(|device| process.nics.device(device)).map_or((0, devices::NO_INDEX), |device| {
        (device.guid(), u32::try_from(device.number()).unwrap_or(devices::NO_INDEX))
    })
}
