//! Every state of a connection against every message and every command, through the real handlers.

use core::net::IpAddr;
use core::time::Duration;

use super::message::{self, Mraed, RejectDetail, Rejected};
use super::state::Input;
use super::*;
use crate::time::Instant;
use crate::verbs::{EventType, QpType};
use crate::wire::cm::{
    CommId, DrepRepr, DreqRepr, MraRepr, RepRepr, RtuRepr, ServiceId, SidrRepRepr, SidrReqRepr,
};
use crate::wire::mad::{AttributeId, MAD_LEN, Mad};
use crate::wire::{Bits, EeContext, Gid, PKey, Psn, QKey, Qpn};

const PEER_ID: CommId = CommId(0x7001);
const PEER_GUID: u64 = 0x42;
const PEER_QPN: u32 = 0x777;
const OWN_QPN: u32 = 0x111;

/// A manager whose id is in some state, and a peer that knows all that it may know.
struct Scene {
    manager: Manager,
    channel: ChannelId,
    device: DeviceId,
    id: CmId,
    local: CommId,
    /// The REQ or SIDR_REQ that made the id, of a passive one.
    request: Option<[u8; MAD_LEN]>,
}

fn address(last: u8) -> IpAddr {
    IpAddr::from([10, 9, 0, last])
}

fn gid(last: u8) -> Gid {
    Gid::from(core::net::Ipv4Addr::new(10, 9, 0, last))
}

fn param() -> ConnParam<'static> {
    ConnParam { qpn: Qpn::new(OWN_QPN), ..ConnParam::default() }
}

impl Scene {
    fn new(space: PortSpace) -> Self {
        let mut manager = Manager::new(Config::default(), 7);
        let device = manager.add_device(Device::new(1, address(1))).unwrap();
        let channel = manager.create_channel().unwrap();
        let id = manager.create_id(channel, 0, space, QpType::Rc).unwrap();
        Self { manager, channel, device, id, local: CommId(0), request: None }
    }

    /// An id that sent its REQ or SIDR_REQ.
    fn active(space: PortSpace) -> Self {
        let mut scene = Self::new(space);
        let (id, wait) = (scene.id, Duration::from_secs(1));
        let to = SocketAddr::new(address(2), 7);
        scene.manager.resolve_addr(Instant::ZERO, id, None, to, wait).unwrap();
        let query = scene.manager.poll_query().unwrap();
        let way = Resolution { device: scene.device, source: address(1), hop_limit: 64, mtu: None };
        assert!(scene.manager.handle_resolution(query.token, Ok(way)));
        scene.manager.resolve_route(id, wait).unwrap();
        scene.manager.connect(Instant::ZERO, id, &param()).unwrap();
        scene.settle()
    }

    /// An id that a REQ or SIDR_REQ made.
    fn passive(space: PortSpace) -> Self {
        let mut scene = Self::new(space);
        scene.manager.bind(scene.id, SocketAddr::new(address(1), 7)).unwrap();
        scene.manager.listen(scene.id, 0).unwrap();
        let request = request(space);
        assert_eq!(scene.receive(&request), Disposition::Accepted);
        let event = scene.manager.poll_event(scene.channel).unwrap();
        assert_eq!(event.kind, EventKind::ConnectRequest);
        scene.id = event.id;
        scene.request = Some(request);
        scene.settle()
    }

    /// Drops what there is to send and to tell.
    fn settle(mut self) -> Self {
        while self.manager.poll_transmit().is_some() {}
        while self.manager.poll_event(self.channel).is_some() {}
        self.local = self.manager.comm_ids(self.id).unwrap_or_default().0;
        self
    }

    fn receive(&mut self, mad: &[u8; MAD_LEN]) -> Disposition {
        self.receive_from(gid(2), mad)
    }

    fn receive_from(&mut self, source: Gid, mad: &[u8; MAD_LEN]) -> Disposition {
        let (device, destination) = (self.device, gid(1));
        let received = Received { device, source, destination, traffic_class: 0, mad };
        self.manager.handle_mad(Instant::ZERO, &received)
    }

    fn state(&self) -> State {
        self.manager.connection_state(self.id).unwrap_or(State::Idle)
    }

    fn then(mut self, message: fn(&Self) -> [u8; MAD_LEN]) -> Self {
        let mad = message(&self);
        assert_eq!(self.receive(&mad), Disposition::Accepted);
        self.settle()
    }

    fn command(mut self, command: fn(&mut Manager, CmId) -> Result<(), Error>) -> Self {
        command(&mut self.manager, self.id).unwrap();
        self.settle()
    }
}

/// Returns a REQ of the peer to listener 7.
fn request(space: PortSpace) -> [u8; MAD_LEN] {
    let mut peer = Manager::new(Config::default(), 8);
    let device = peer.add_device(Device::new(PEER_GUID, address(2))).unwrap();
    let channel = peer.create_channel().unwrap();
    let id = peer.create_id(channel, 0, space, QpType::Rc).unwrap();
    let (wait, to) = (Duration::from_secs(1), SocketAddr::new(address(1), 7));
    peer.resolve_addr(Instant::ZERO, id, None, to, wait).unwrap();
    let query = peer.poll_query().unwrap();
    let way = Resolution { device, source: address(2), hop_limit: 64, mtu: None };
    peer.handle_resolution(query.token, Ok(way));
    peer.resolve_route(id, wait).unwrap();
    let param = ConnParam { qpn: Qpn::new(PEER_QPN), ..ConnParam::default() };
    peer.connect(Instant::ZERO, id, &param).unwrap();
    let mut mad = peer.poll_transmit().unwrap().mad;
    mad[24..28].copy_from_slice(&PEER_ID.0.to_be_bytes());
    mad
}

fn rep(scene: &Scene) -> [u8; MAD_LEN] {
    let rep = RepRepr {
        local_comm_id: PEER_ID,
        remote_comm_id: scene.local,
        local_q_key: QKey::new(0),
        local_qpn: Qpn::new(PEER_QPN),
        vendor_id_h: 0,
        local_eecn: EeContext::new(0),
        vendor_id_m: 0,
        starting_psn: Psn::new(9),
        vendor_id_l: 0,
        responder_resources: 1,
        initiator_depth: 1,
        target_ack_delay: Bits::low(15),
        failover_accepted: Bits::ZERO,
        flow_control: false,
        rnr_retry_count: Bits::low(7),
        srq: false,
        selective_repeat: false,
        local_ca_guid: PEER_GUID,
        private_data: [0; 196],
    };
    message::mad(1, AttributeId::CM_REP, 0, rep.emit().as_bytes())
}

fn rtu(scene: &Scene) -> [u8; MAD_LEN] {
    let rtu =
        RtuRepr { local_comm_id: PEER_ID, remote_comm_id: scene.local, private_data: [0; 224] };
    message::mad(1, AttributeId::CM_RTU, 0, rtu.emit().as_bytes())
}

fn mra(scene: &Scene, mraed: Mraed) -> [u8; MAD_LEN] {
    let mra = MraRepr {
        local_comm_id: PEER_ID,
        remote_comm_id: scene.local,
        message_mraed: Bits::low(mraed as u32),
        service_timeout: Bits::low(10),
        private_data: [0; 222],
    };
    message::mad(1, AttributeId::CM_MRA, 0, mra.emit().as_bytes())
}

fn rej(scene: &Scene, reason: u16) -> [u8; MAD_LEN] {
    let peer = scene.manager.comm_ids(scene.id).map(|ids| ids.1);
    let rejected = if peer == Some(PEER_ID) { Rejected::Other } else { Rejected::Req };
    message::rej(1, (PEER_ID, scene.local), rejected, reason, &RejectDetail::NONE)
}

fn dreq(scene: &Scene) -> [u8; MAD_LEN] {
    let dreq = DreqRepr {
        local_comm_id: PEER_ID,
        remote_comm_id: scene.local,
        remote_qpn_eecn: Qpn::new(OWN_QPN),
        private_data: [0; 220],
    };
    message::mad(1, AttributeId::CM_DREQ, 0, dreq.emit().as_bytes())
}

fn drep(scene: &Scene) -> [u8; MAD_LEN] {
    let drep =
        DrepRepr { local_comm_id: PEER_ID, remote_comm_id: scene.local, private_data: [0; 224] };
    message::mad(1, AttributeId::CM_DREP, 0, drep.emit().as_bytes())
}

fn sidr_req(scene: &Scene) -> [u8; MAD_LEN] {
    scene.request.unwrap_or_else(|| {
        let request = SidrReqRepr {
            request_id: PEER_ID,
            partition_key: PKey::DEFAULT,
            service_id: ServiceId::rdma_cm(PortSpace::UDP, 7),
            private_data: [0; 216],
        };
        message::mad(1, AttributeId::CM_SIDR_REQ, 0, request.emit().as_bytes())
    })
}

fn sidr_rep(scene: &Scene) -> [u8; MAD_LEN] {
    let rep = SidrRepRepr {
        request_id: scene.local,
        status: 0,
        additional_information_length: 0,
        vendor_id_h: 0,
        qpn: Qpn::new(PEER_QPN),
        vendor_id_l: 0,
        service_id: ServiceId::rdma_cm(PortSpace::UDP, 7),
        q_key: UDP_Q_KEY,
        additional_information: [0; 72],
        private_data: [0; 136],
    };
    message::mad(1, AttributeId::CM_SIDR_REP, 0, rep.emit().as_bytes())
}

type Maker = fn(&Scene) -> [u8; MAD_LEN];

/// Every message, and the input that it is.
const MESSAGES: &[(Input, Maker)] = &[
    (Input::RecvReq, |scene| scene.request.unwrap_or_else(|| request(PortSpace::TCP))),
    (Input::RecvRep, rep),
    (Input::RecvRtu, rtu),
    (Input::RecvMraOfReq, |scene| mra(scene, Mraed::Req)),
    (Input::RecvMraOfRep, |scene| mra(scene, Mraed::Rep)),
    (Input::RecvRej, |scene| rej(scene, 28)),
    (Input::RecvRejStale, |scene| rej(scene, 10)),
    (Input::RecvDreq, dreq),
    (Input::RecvDrep, drep),
    (Input::RecvSidrReq, sidr_req),
    (Input::RecvSidrRep, sidr_rep),
];

fn accept(manager: &mut Manager, id: CmId) -> Result<(), Error> {
    manager.accept(Instant::ZERO, id, 0, &param())
}

fn disconnect(manager: &mut Manager, id: CmId) -> Result<(), Error> {
    manager.disconnect(Instant::ZERO, id)
}

/// A scene in a state.
fn reach(state: State) -> Scene {
    let scene = match state {
        State::Idle => unreachable!("an id without a connection"),
        State::ReqSent => Scene::active(PortSpace::TCP),
        State::MraReqRcvd => reach(State::ReqSent).then(|scene| mra(scene, Mraed::Req)),
        State::RepRcvd => reach(State::ReqSent).then(rep),
        State::Established => reach(State::RepRcvd).command(|manager, id| manager.establish(id)),
        State::DreqSent => reach(State::Established).command(disconnect),
        State::DreqRcvd => reach(State::Established).then(dreq),
        State::Timewait => reach(State::DreqSent).then(drep),
        State::ReqRcvd => Scene::passive(PortSpace::TCP),
        State::RepSent => reach(State::ReqRcvd).command(accept),
        State::MraRepRcvd => reach(State::RepSent).then(|scene| mra(scene, Mraed::Rep)),
        State::SidrReqSent => Scene::active(PortSpace::UDP),
        State::SidrReqRcvd => Scene::passive(PortSpace::UDP),
    };
    assert_eq!(scene.state(), state);
    scene
}

fn states() -> impl Iterator<Item = State> {
    State::ALL.iter().copied().filter(|state| *state != State::Idle)
}

#[test]
fn every_message_in_every_state_does_what_the_table_says() {
    for state in states() {
        for (input, message) in MESSAGES {
            let mut scene = reach(state);
            let mad = message(&scene);
            let disposition = scene.receive(&mad);
            let expected = state.after(*input);
            assert_eq!(scene.state(), expected.unwrap_or(state), "{input:?} in {state:?}");
            let is_refused = matches!(disposition, Disposition::Refused(_));
            assert_eq!(is_refused, expected.is_none(), "{input:?} in {state:?}: {disposition:?}");
        }
    }
}

#[test]
fn every_command_in_every_state_does_what_the_table_says() {
    type Command = fn(&mut Manager, CmId) -> Result<(), Error>;
    let reject: Command =
        |manager, id| manager.reject(Instant::ZERO, id, RejectReason::Consumer, &[]);
    let commands: [(&[Input], Command); 5] = [
        (&[Input::SendRep, Input::SendSidrRep], accept),
        (&[Input::SendRtu], |manager, id| manager.establish(id)),
        (&[Input::SendRej, Input::SendSidrRep], reject),
        (&[Input::CommEst], |manager, id| manager.notify(id, EventType::CommEst)),
        (&[Input::SendDreq, Input::SendDrep], disconnect),
    ];
    for state in states() {
        for (inputs, command) in &commands {
            let mut scene = reach(state);
            let result = command(&mut scene.manager, scene.id);
            let expected = inputs.iter().find_map(|input| state.after(*input));
            let context = format!("{inputs:?} in {state:?}: {result:?}");
            assert_eq!(scene.state(), expected.unwrap_or(state), "{context}");
            // Disconnecting what is not connected is no error.
            let is_lenient = inputs.contains(&Input::SendDreq);
            assert_eq!(result.is_ok(), expected.is_some() || is_lenient, "{context}");
        }
    }
}

/// However an id ends, its connection is forgotten after its messages and timewait, and with it
/// every trace.
#[test]
fn destroyed_id_leaves_nothing_behind() {
    for state in states() {
        let mut scene = reach(state);
        scene.manager.destroy_id(Instant::ZERO, scene.id).unwrap();
        let told: Vec<_> = core::iter::from_fn(|| scene.manager.poll_transmit()).collect();
        let attribute = |sent: &Transmit| Mad::parse(&sent.mad).unwrap().header.attribute();
        let expected = match state {
            State::ReqSent | State::MraReqRcvd => Some((AttributeId::CM_REJ, 4)),
            State::ReqRcvd | State::RepRcvd | State::RepSent | State::MraRepRcvd => {
                Some((AttributeId::CM_REJ, 28))
            }
            State::Established => Some((AttributeId::CM_DREQ, 0)),
            State::DreqRcvd => Some((AttributeId::CM_DREP, 0)),
            State::SidrReqRcvd => Some((AttributeId::CM_SIDR_REP, 2)),
            _ => None,
        };
        assert_eq!(told.first().map(attribute), expected.map(|row| row.0), "{state:?}");
        assert!(told.len() <= 1, "{state:?}");
        if let (Some((AttributeId::CM_REJ, reason)), Some(sent)) = (expected, told.first()) {
            assert_eq!(u16::from_be_bytes([sent.mad[34], sent.mad[35]]), reason, "{state:?}");
        }
        // The channel's listener, of a passive id, stays.
        let listeners = scene.manager.usage().ids;
        let mut rounds = 0;
        while let Some(at) = scene.manager.poll_timeout() {
            scene.manager.handle_timeout(at);
            while scene.manager.poll_transmit().is_some() {}
            rounds += 1;
            assert!(rounds < 100, "{state:?} comes to an end");
        }
        let expected = Usage { ids: listeners, bindings: listeners, ..Usage::default() };
        assert_eq!(scene.manager.usage(), expected, "{state:?}");
    }
}

/// Unanswered messages are given up, with an event, after as long as Linux takes and as many
/// retransmissions as it makes; but a peer that has not answered gets three REPs at most.
#[test]
fn unanswered_messages_are_given_up() {
    let rows = [
        (State::ReqSent, EventKind::Unreachable, 4608, 15),
        (State::RepSent, EventKind::Unreachable, 4096, 2),
        (State::DreqSent, EventKind::Disconnected, 4608, 15),
        (State::SidrReqSent, EventKind::Unreachable, 4096, 15),
    ];
    for (state, kind, interval, retries) in rows {
        let mut scene = reach(state);
        let mut times = Vec::new();
        let mut rounds = 0;
        let event = loop {
            let at = scene.manager.poll_timeout().unwrap();
            scene.manager.handle_timeout(at);
            if let Some(event) = scene.manager.poll_event(scene.channel) {
                break event;
            }
            rounds += 1;
            if scene.manager.poll_transmit().is_some() {
                times.push(at.as_nanos() / 1_000_000);
            }
        };
        assert_eq!(rounds, 15, "{state:?}");
        assert_eq!(times, (1..=retries).map(|n| n * interval).collect::<Vec<_>>(), "{state:?}");
        assert_eq!((event.kind, event.status), (kind, -110), "{state:?}");
    }
}

/// Whatever a stranger at its own address says of another's connection, with the right comm ids,
/// changes nothing and is answered as what nothing knows.
#[test]
fn messages_from_another_address_change_nothing() {
    for state in states() {
        for (input, message) in MESSAGES {
            if matches!(input, Input::RecvReq | Input::RecvSidrReq) {
                continue;
            }
            let mut scene = reach(state);
            let (mad, deadline) = (message(&scene), scene.manager.poll_timeout());
            let disposition = scene.receive_from(gid(3), &mad);
            let context = format!("{input:?} in {state:?}");
            assert_eq!(scene.state(), state, "{context}");
            assert_eq!(scene.manager.poll_event(scene.channel), None, "{context}");
            assert_eq!(scene.manager.poll_timeout(), deadline, "{context}");
            assert!(matches!(disposition, Disposition::Refused(_)), "{context}");
            let answers = core::iter::from_fn(|| scene.manager.poll_transmit());
            let answers: Vec<_> = answers.map(|sent| (sent.ah.dgid, sent.mad[17])).collect();
            let mut nothing = Scene::new(PortSpace::TCP);
            nothing.local = CommId(0x1234);
            let unknown = message(&nothing);
            nothing.receive_from(gid(3), &unknown);
            let expected = core::iter::from_fn(|| nothing.manager.poll_transmit());
            let expected: Vec<_> = expected.map(|sent| (sent.ah.dgid, sent.mad[17])).collect();
            assert_eq!(answers, expected, "{context}: what exists is not told");
        }
    }
}

/// A REQ with another peer's GUID, comm id and QPN is a request of its own, and ends nothing.
#[test]
fn request_from_another_address_is_no_duplicate_and_makes_nothing_stale() {
    for state in [State::ReqRcvd, State::RepSent, State::MraRepRcvd] {
        let mut scene = reach(state);
        let stolen = readdress(&scene.request.unwrap(), 3);
        assert_eq!(scene.receive_from(gid(3), &stolen), Disposition::Accepted, "{state:?}");
        assert_eq!(scene.state(), state);
        assert!(scene.manager.poll_transmit().is_none(), "no one is told of it");
    }
    // The same of a connection that this side made: the QPN is known by its REP.
    let mut scene = reach(State::Established);
    let stolen = readdress(&request(PortSpace::TCP), 3);
    let disposition = scene.receive_from(gid(3), &stolen);
    assert_eq!(disposition, Disposition::Refused(Counter::NoListener));
    assert_eq!(scene.state(), State::Established);
    // From the peer itself, it means that the peer knows nothing of the connection.
    let disposition = scene.receive(&stolen_id(&request(PortSpace::TCP)));
    assert_eq!(disposition, Disposition::Refused(Counter::StaleReq));
    assert_eq!(scene.state(), State::DreqSent);
}

/// Returns the REQ with another comm id.
fn stolen_id(req: &[u8; MAD_LEN]) -> [u8; MAD_LEN] {
    let mut mad = *req;
    mad[27] ^= 0x55;
    mad
}

/// Returns the REQ with the address of another sender in its path and its header.
fn readdress(req: &[u8; MAD_LEN], last: u8) -> [u8; MAD_LEN] {
    let mut mad = *req;
    mad[24 + 56..24 + 72].copy_from_slice(&gid(last).0);
    mad[24 + 140 + 19] = last;
    mad
}

/// A REQ is refused if its path, or its header, names another address than its own.
#[test]
fn request_that_names_another_address_is_refused() {
    type Lie = fn(&mut [u8; MAD_LEN]);
    let lies: [(Lie, Counter); 3] = [
        (|mad| mad[24 + 71] = 9, Counter::ForeignGid),
        (|mad| mad[24 + 56..24 + 72].fill(0xff), Counter::ForeignGid),
        (|mad| mad[24 + 140 + 19] = 9, Counter::BadIpHeader),
    ];
    for (lie, reason) in lies {
        let mut scene = Scene::new(PortSpace::TCP);
        scene.manager.bind(scene.id, SocketAddr::new(address(1), 7)).unwrap();
        scene.manager.listen(scene.id, 0).unwrap();
        let mut mad = request(PortSpace::TCP);
        lie(&mut mad);
        assert_eq!(scene.receive(&mad), Disposition::Refused(reason));
        let answer = scene.manager.poll_transmit().unwrap();
        assert_eq!((answer.ah.dgid, answer.mad[17]), (gid(2), 0x12), "a REJ to the sender");
        assert!(scene.manager.poll_transmit().is_none());
        assert_eq!(scene.manager.poll_event(scene.channel), None);
        assert_eq!(scene.receive(&request(PortSpace::TCP)), Disposition::Accepted);
    }
}

/// A peer that has not answered gets three messages for each of its own, whatever timers and
/// commands do.
#[test]
fn unproven_peer_gets_three_messages_for_one() {
    let ends: [fn(&mut Scene); 3] = [
        |_| {},
        |scene| {
            let _ = scene.manager.destroy_id(Instant::ZERO, scene.id);
        },
        |scene| {
            let _ = scene.manager.reject(Instant::ZERO, scene.id, RejectReason::Consumer, &[]);
        },
    ];
    for end in ends {
        let mut scene = Scene::passive(PortSpace::TCP);
        // The shortest response time that there is, and as many retries.
        let mut sent = 0;
        scene.manager.accept(Instant::ZERO, scene.id, 0, &param()).unwrap();
        for round in 0..40 {
            if round == 10 {
                end(&mut scene);
            }
            let Some(at) = scene.manager.poll_timeout() else { break };
            scene.manager.handle_timeout(at);
            sent += core::iter::from_fn(|| scene.manager.poll_transmit()).count();
        }
        assert_eq!(sent, 3);
        assert!(scene.manager.counters().get(Counter::Unproven) > 0);
    }
    // One more REQ, and there are more answers; an RTU, and there is no limit.
    let mut scene = reach(State::RepSent);
    let request = scene.request.unwrap();
    scene.receive(&request);
    let mut sent = 0;
    while let Some(at) = scene.manager.poll_timeout() {
        scene.manager.handle_timeout(at);
        sent += core::iter::from_fn(|| scene.manager.poll_transmit()).count();
    }
    assert_eq!(sent, 5, "six, of which one was sent before");
}

/// A caller that knows that nothing is at the peer's address ends the wait for an answer as a host
/// without a listener does.
#[test]
fn absent_peer_refuses_as_one_without_a_listener() {
    let rows = [
        (State::ReqSent, EventKind::Rejected, 8, 148),
        (State::SidrReqSent, EventKind::Unreachable, 1, 136),
    ];
    for (state, kind, status, len) in rows {
        let mut scene = reach(state);
        scene.manager.refuse_absent(scene.id).unwrap();
        let event = scene.manager.poll_event(scene.channel).unwrap();
        assert_eq!((event.kind, event.status), (kind, status), "{state:?}");
        assert_eq!(event.param.private_data(), vec![0; len], "{state:?}");
        assert_eq!(scene.manager.poll_timeout(), None, "{state:?}: nothing is retransmitted");
        assert_eq!(scene.manager.refuse_absent(scene.id), Err(Error::Connection));
    }
    let mut scene = reach(State::Established);
    assert_eq!(scene.manager.refuse_absent(scene.id), Err(Error::Connection));
}

/// Linux's `cm_req_handler` checks in this order: duplicate, stale, listener, GID, header.
#[test]
fn first_reason_to_refuse_a_request_wins() {
    let mut scene = reach(State::RepSent);
    let wrong_gid_and_header = |mad: &[u8; MAD_LEN]| {
        let mut mad = *mad;
        mad[24..28].copy_from_slice(&[0, 0, 0x70, 2]);
        mad[24 + 87] ^= 0xff;
        mad[24 + 140] = 0x10;
        mad
    };
    let stale = wrong_gid_and_header(&request(PortSpace::TCP));
    assert_eq!(scene.receive(&stale), Disposition::Refused(Counter::StaleReq));
    let mut fresh = stale;
    fresh[24 + 34] ^= 0xff;
    assert_eq!(scene.receive(&fresh), Disposition::Refused(Counter::BadPrimaryGid));
    fresh[24 + 87] ^= 0xff;
    assert_eq!(scene.receive(&fresh), Disposition::Refused(Counter::BadIpHeader));
    fresh[24 + 140] = 0;
    assert_eq!(scene.receive(&fresh), Disposition::Accepted);
}
