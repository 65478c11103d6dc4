//! The connection manager: any MADs to queue pair 1, with commands and time between them. Nothing
//! panics, every table keeps to its bound, and when all is closed nothing is left.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use roce::cm::{
    ChannelId, CmId, Config, ConnParam, Device, DeviceId, IdOption, JoinMode, Limits, Manager,
    Received, RejectReason, Resolution, Retransmission, Transmit, Usage, limits,
};
use roce::time::Instant;
use roce::verbs::{EventType, QpState, QpType};
use roce::wire::cm::{CommId, PortSpace};
use roce::wire::{Gid, Qpn};

/// Small limits, so that an input reaches them.
fn bounds() -> Limits {
    let mut limits = Limits::default();
    (limits.devices, limits.channels, limits.ids) = (2, 3, 24);
    (limits.backlog, limits.events, limits.lingering) = (4, 32, 6);
    (limits.transmits, limits.groups) = (16, 2);
    (limits.half_open, limits.half_open_per_source) = (6, 3);
    limits
}

/// The input, taken byte by byte; zeros behind its end.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        let at = usize::from(self.byte());
        from.get(at % from.len().max(1)).copied()
    }

    fn fill(&mut self, to: &mut [u8]) {
        to.iter_mut().for_each(|byte| *byte = self.byte());
    }
}

struct Run<'a> {
    script: Script<'a>,
    manager: Manager,
    now: Instant,
    devices: Vec<DeviceId>,
    channels: Vec<ChannelId>,
    ids: Vec<CmId>,
    /// Messages that the manager sent, for it to hear: it is its own peer.
    sent: Vec<Transmit>,
}

const ADDRESSES: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(10, 9, 0, 1)),
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1)),
];

/// The manager's own addresses, a peer's, a stranger's, and some that are no host's.
const ALL_ADDRESSES: [IpAddr; 8] = [
    ADDRESSES[0],
    ADDRESSES[1],
    IpAddr::V4(Ipv4Addr::new(10, 9, 0, 2)),
    IpAddr::V4(Ipv4Addr::new(10, 9, 0, 3)),
    IpAddr::V4(Ipv4Addr::LOCALHOST),
    IpAddr::V4(Ipv4Addr::new(224, 0, 0, 1)),
    IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    IpAddr::V6(Ipv6Addr::UNSPECIFIED),
];

/// Steps of one input: enough for every state of several connections, and few enough for thousands
/// of inputs a second.
const STEPS: usize = 128;

/// Longer than any timer of the manager.
const LONG: Duration = Duration::from_secs(100_000);
const SPACES: [PortSpace; 4] = [PortSpace::TCP, PortSpace::UDP, PortSpace::IB, PortSpace::TCP];
const TYPES: [QpType; 5] = [QpType::Rc, QpType::Uc, QpType::Ud, QpType::XrcSend, QpType::XrcRecv];

fn gid(address: IpAddr) -> Gid {
    match address {
        IpAddr::V4(v4) => Gid::from(v4),
        IpAddr::V6(v6) => Gid::from(v6),
    }
}

/// Steps of a program and of a network, as the input tells.
pub fn cm(input: &[u8]) {
    let mut script = Script(input);
    let retransmission = match script.byte() % 2 {
        0 => Retransmission::Constant,
        _ => Retransmission::Backoff(Duration::from_millis(20)),
    };
    let mut config = Config::default();
    (config.limits, config.retransmission) = (bounds(), retransmission);
    let mut run = Run {
        script,
        manager: Manager::new(config, 7),
        now: Instant::ZERO,
        devices: Vec::new(),
        channels: Vec::new(),
        ids: Vec::new(),
        sent: Vec::new(),
    };
    run.begin();
    let is_gradual = run.script.byte().is_multiple_of(8);
    for step in 0..STEPS {
        if run.script.0.is_empty() {
            break;
        }
        run.step();
        run.collect();
        // What a table holds too much it still holds some steps later.
        if step % 8 == 7 {
            run.check();
        }
    }
    run.check();
    run.end(is_gradual);
}

impl Run<'_> {
    fn begin(&mut self) {
        for (guid, address) in (1..).zip(ADDRESSES) {
            let device = Device::new(guid, address);
            self.devices.extend(self.manager.add_device(device));
        }
        self.channels.extend(self.manager.create_channel());
        for space in [PortSpace::TCP, PortSpace::UDP] {
            let Ok(id) = self.manager.create_id(self.channels[0], 0, space, QpType::Rc) else {
                continue;
            };
            let _ = self.manager.bind(id, SocketAddr::new(ADDRESSES[0], 7));
            let _ = self.manager.listen(id, 3);
            self.ids.push(id);
        }
    }

    fn address(&mut self) -> IpAddr {
        self.script.pick(&ALL_ADDRESSES).unwrap_or(ADDRESSES[0])
    }

    fn socket(&mut self) -> SocketAddr {
        SocketAddr::new(self.address(), u16::from(self.script.byte() % 9))
    }

    fn step(&mut self) {
        let now = self.now;
        let code = self.script.byte() % 32;
        let id = self.script.pick(&self.ids);
        match (code, id) {
            (0, _) => self.raw_mad(),
            (1..=4, _) => self.shaped_mad(),
            (5..=9, _) => self.echo(),
            (10, _) => self.create(),
            (11, _) => self.wait(),
            (12, _) => self.connect_to_itself(),
            (13, _) => self.objects(),
            (14, Some(id)) => {
                let socket = self.socket();
                let _ = self.manager.bind(id, socket);
            }
            (15, Some(id)) => {
                let _ = self.manager.listen(id, u32::from(self.script.byte() % 8));
            }
            (16, Some(id)) => {
                let socket = self.socket();
                let _ = self.manager.resolve_addr(now, id, None, socket, Duration::from_secs(2));
            }
            (17, _) => self.answer(),
            (18, Some(id)) => {
                let _ = self.manager.resolve_route(id, Duration::from_secs(1));
            }
            (19, Some(id)) => {
                self.with_param(|manager, param| manager.connect(now, id, param).is_ok());
            }
            (20 | 21, Some(id)) => {
                self.with_param(|manager, param| manager.accept(now, id, 1, param).is_ok());
            }
            (22, Some(id)) => {
                let _ = self.manager.reject(now, id, RejectReason::Consumer, b"no");
            }
            (23 | 24, Some(id)) => {
                let _ = self.manager.establish(id);
            }
            (25, Some(id)) => {
                let _ = self.manager.disconnect(now, id);
            }
            (26, Some(id)) => {
                let _ = self.manager.destroy_id(now, id);
                self.ids.retain(|other| *other != id);
            }
            (27, Some(id)) => self.option(id),
            (28, Some(id)) => {
                let _ = self.manager.notify(id, EventType::CommEst);
                for state in [QpState::Init, QpState::Rtr, QpState::Rts, QpState::Err] {
                    let _ = self.manager.qp_attr(id, state);
                }
            }
            (29, Some(id)) => {
                let address = self.address();
                let _ = self.manager.join(id, address, JoinMode::FullMember, 5);
                if self.script.byte().is_multiple_of(2) {
                    let _ = self.manager.leave(id, address);
                }
            }
            (30, Some(id)) => {
                if let Some(channel) = self.script.pick(&self.channels) {
                    let _ = self.manager.migrate_id(id, channel);
                }
            }
            _ => self.events(),
        }
    }

    fn receive(&mut self, device: DeviceId, source: Gid, destination: Gid, mad: &[u8]) {
        let received = Received { device, source, destination, traffic_class: 0, mad };
        let _ = self.manager.handle_mad(self.now, &received);
    }

    /// A datagram of any bytes, mostly as long as a MAD.
    fn raw_mad(&mut self) {
        let mut mad = [0; 256];
        self.script.fill(&mut mad);
        let length = if self.script.byte().is_multiple_of(8) {
            usize::from(self.script.byte())
        } else {
            256
        };
        let (source, destination) = (gid(self.address()), gid(self.address()));
        if let Some(device) = self.script.pick(&self.devices) {
            self.receive(device, source, destination, &mad[..length]);
        }
    }

    /// A CM message of any kind, for a connection that exists or not, with a few bytes of the
    /// script's.
    fn shaped_mad(&mut self) {
        let mut mad = [0; 256];
        mad[..4].copy_from_slice(&[1, 7, 2, 3]);
        mad[17] = 0x10 + self.script.byte() % 11;
        let known: Vec<CommId> = self
            .ids
            .iter()
            .filter_map(|id| self.manager.comm_ids(*id))
            .flat_map(|(local, remote)| [local, remote])
            .collect();
        for at in [24, 28] {
            let id = match self.script.byte() % 3 {
                0 => CommId(u32::from(self.script.byte() % 4)),
                _ => self.script.pick(&known).unwrap_or_default(),
            };
            mad[at..at + 4].copy_from_slice(&id.0.to_be_bytes());
        }
        for _ in 0..self.script.byte() % 6 {
            let at = usize::from(self.script.byte()).max(32);
            mad[at] = self.script.byte();
        }
        if let Some(device) = self.script.pick(&self.devices) {
            let own = self.manager.device(device).map(|device| device.addresses[0].0);
            let own = gid(own.unwrap_or_else(|| IpAddr::from([0; 4])));
            // Most come from the peer, which is the manager itself; some from a stranger.
            let source = match self.script.byte() % 4 {
                0 => gid(self.address()),
                _ => own,
            };
            self.receive(device, source, own, &mad);
        }
    }

    /// A message of the manager's own comes back to it, perhaps changed, lost or twice.
    fn echo(&mut self) {
        if self.sent.is_empty() {
            return;
        }
        let at = usize::from(self.script.byte()) % self.sent.len();
        let mode = self.script.byte() % 8;
        let Transmit { device, ah, mut mad } = self.sent[at].clone();
        if mode == 0 {
            let place = usize::from(self.script.byte());
            mad[place] ^= self.script.byte();
        }
        if mode != 1 {
            self.sent.remove(at);
        }
        self.receive(device, ah.dgid, ah.dgid, &mad);
    }

    fn create(&mut self) {
        let (space, kind) = (self.script.pick(&SPACES), self.script.pick(&TYPES));
        let (Some(channel), Some(space), Some(kind)) =
            (self.script.pick(&self.channels), space, kind)
        else {
            return;
        };
        self.ids.extend(self.manager.create_id(channel, 3, space, kind));
    }

    /// A whole request to the manager's own listener, so that short scripts go deep.
    fn connect_to_itself(&mut self) {
        let now = self.now;
        let (space, channel) = (self.script.pick(&SPACES[..2]), self.script.pick(&self.channels));
        let (Some(space), Some(channel)) = (space, channel) else { return };
        let Ok(id) = self.manager.create_id(channel, 0, space, QpType::Rc) else { return };
        self.ids.push(id);
        let to = SocketAddr::new(ADDRESSES[0], 7);
        let _ = self.manager.resolve_addr(now, id, None, to, Duration::from_secs(1));
        self.answer();
        let _ = self.manager.resolve_route(id, Duration::from_secs(1));
        self.with_param(|manager, param| manager.connect(now, id, param).is_ok());
    }

    fn answer(&mut self) {
        while let Some(query) = self.manager.poll_query() {
            let at = usize::from(query.destination.is_ipv6());
            let Some(&device) = self.devices.get(at) else { continue };
            let source = ADDRESSES[at];
            let way = Resolution { device, source, hop_limit: 64, mtu: None };
            self.manager.handle_resolution(query.token, Ok(way));
        }
    }

    fn with_param(&mut self, command: impl FnOnce(&mut Manager, &ConnParam<'_>) -> bool) {
        let data = [self.script.byte(); 200];
        let length = if self.script.byte().is_multiple_of(16) { 200 } else { 20 };
        let param = ConnParam {
            private_data: &data[..length],
            qpn: Qpn::new(u32::from(self.script.byte() % 8)),
            responder_resources: self.script.byte(),
            initiator_depth: self.script.byte(),
            retry_count: self.script.byte(),
            ..ConnParam::default()
        };
        command(&mut self.manager, &param);
    }

    fn option(&mut self, id: CmId) {
        let value = self.script.byte();
        let option = match value % 5 {
            0 => IdOption::Tos(value),
            1 => IdOption::ReuseAddr(value > 99),
            2 => IdOption::AfOnly(value > 99),
            3 => IdOption::AckTimeout(value),
            _ => match self.ids.iter().find_map(|id| self.manager.path(*id)) {
                Some(path) => IdOption::Path(*path),
                None => return,
            },
        };
        let _ = self.manager.set_option(id, option);
    }

    fn objects(&mut self) {
        match self.script.byte() % 4 {
            0 => self.channels.extend(self.manager.create_channel()),
            1 if self.channels.len() > 1 => {
                let channel = self.channels.pop().expect("there is one");
                let _ = self.manager.close_channel(self.now, channel);
                let manager = &self.manager;
                self.ids.retain(|id| manager.id_state(*id).is_some());
            }
            2 if self.devices.len() > 1 => {
                let device = self.devices.pop().expect("there is one");
                let _ = self.manager.remove_device(device);
            }
            _ => {
                let device = Device::new(9, ADDRESSES[1]);
                self.devices.extend(self.manager.add_device(device));
            }
        }
    }

    fn wait(&mut self) {
        let ms = 1_u64 << (self.script.byte() % 18);
        self.now = self.now.saturating_add(Duration::from_millis(ms));
        self.manager.handle_timeout(self.now);
        assert!(self.manager.poll_timeout().is_none_or(|next| next > self.now));
    }

    fn events(&mut self) {
        for channel in &self.channels {
            while let Some(event) = self.manager.poll_event(*channel) {
                if event.listener.is_some() {
                    self.ids.push(event.id);
                }
            }
        }
        while self.manager.poll_readable().is_some() {}
    }

    fn collect(&mut self) {
        while let Some(sent) = self.manager.poll_transmit() {
            if self.sent.len() < 64 {
                self.sent.push(sent);
            }
        }
    }

    fn check(&self) {
        let usage = self.manager.usage();
        let bounds = bounds();
        assert!(usage.ids <= bounds.ids && usage.lingering <= bounds.lingering);
        assert!(usage.connections <= usage.ids + usage.lingering);
        assert!(usage.half_open <= bounds.half_open.min(usage.connections), "{usage:?}");
        assert!(usage.index_entries <= usage.connections * 3);
        assert!(usage.timers <= usage.connections + usage.ids);
        assert!(usage.queries <= usage.ids && usage.bindings <= usage.ids);
        let most = bounds.events * bounds.channels + limits::EVENTS_PER_ID * bounds.ids;
        assert!(usage.events <= most, "{usage:?}");
    }

    /// Closes everything. Time passes from deadline to deadline, or all timers expire at once,
    /// which is quicker.
    fn end(&mut self, is_gradual: bool) {
        self.manager.shutdown(self.now);
        self.collect();
        for _ in 0..1_000 {
            let Some(at) = self.manager.poll_timeout() else { break };
            let at = if is_gradual { at } else { at.saturating_add(LONG) };
            self.manager.handle_timeout(at);
            self.collect();
        }
        assert_eq!(self.manager.usage(), Usage::default());
    }
}
