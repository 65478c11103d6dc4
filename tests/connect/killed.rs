//! Processes that are killed, by SIGKILL, in every state of a connection: what the other side is
//! told, and that a successor at the same address connects.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::Stdio;

use roce::cm::{CmId, ConnParam, EventKind, State};

use crate::common::loopback::loopback;
use crate::common::process::{Child, Command};
use crate::service::Node;

/// Tells the test's process what it is: `ROLE STATE OWN-ADDRESS PEER-ADDRESS`.
const ROLE: &str = "ROCE_TEST_KILLED";

const PORT: u16 = 7174;

/// Role of the killed side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Active,
    Passive,
}

/// Events of the survivor of a peer that was killed in a state.
struct Case {
    role: Role,
    /// The state of the killed side; `Idle` listens.
    state: State,
    /// Whether the survivor disconnects after that; otherwise it only waits.
    disconnects: bool,
    /// The last event that the survivor gets.
    last: EventKind,
    status: i32,
}

const TIMED_OUT: i32 = -110;

const fn case(
    role: Role,
    state: State,
    disconnects: bool,
    (last, status): (EventKind, i32),
) -> Case {
    Case { role, state, disconnects, last, status }
}

const UNREACHABLE: (EventKind, i32) = (EventKind::Unreachable, TIMED_OUT);
const DISCONNECTED: (EventKind, i32) = (EventKind::Disconnected, TIMED_OUT);
const TIMEWAIT_EXIT: (EventKind, i32) = (EventKind::TimewaitExit, 0);

const CASES: [Case; 13] = [
    case(Role::Passive, State::Idle, false, UNREACHABLE),
    case(Role::Passive, State::ReqRcvd, false, UNREACHABLE),
    case(Role::Passive, State::RepSent, true, DISCONNECTED),
    case(Role::Passive, State::Established, true, DISCONNECTED),
    case(Role::Passive, State::DreqSent, true, TIMEWAIT_EXIT),
    case(Role::Passive, State::DreqRcvd, false, DISCONNECTED),
    case(Role::Passive, State::Timewait, false, TIMEWAIT_EXIT),
    case(Role::Active, State::ReqSent, false, UNREACHABLE),
    case(Role::Active, State::RepRcvd, false, UNREACHABLE),
    case(Role::Active, State::Established, true, DISCONNECTED),
    case(Role::Active, State::DreqSent, true, TIMEWAIT_EXIT),
    case(Role::Active, State::DreqRcvd, false, DISCONNECTED),
    case(Role::Active, State::Timewait, false, TIMEWAIT_EXIT),
];

/// One side of a connection, with what it waits for.
struct Side {
    node: Node,
    id: Option<CmId>,
}

impl Side {
    fn id(&self) -> CmId {
        self.id.unwrap()
    }

    fn connect(&mut self, to: SocketAddr) {
        self.id = Some(self.node.connect(to, b""));
    }

    fn take_request(&mut self) {
        self.id = Some(self.node.expect(EventKind::ConnectRequest).id);
    }

    fn accept(&self) {
        let id = self.id();
        self.node.run(|manager, now| manager.accept(now, id, 0, &ConnParam::default())).unwrap();
    }

    fn take_response(&self) {
        self.node.expect(EventKind::ConnectResponse);
    }

    fn establish(&self) {
        let id = self.id();
        self.node.run(|manager, _| manager.establish(id)).unwrap();
    }

    fn disconnect(&self) {
        let id = self.id();
        self.node.run(|manager, now| manager.disconnect(now, id)).unwrap();
    }

    /// Goes through a connection until this side is in `state`. The peer does its part.
    fn advance(&mut self, role: Role, to: SocketAddr, state: State) {
        match role {
            Role::Passive => {
                if state == State::Idle {
                    return;
                }
                self.take_request();
                if state == State::ReqRcvd {
                    return;
                }
                self.accept();
                if state == State::RepSent {
                    return;
                }
                self.node.expect(EventKind::Established);
            }
            Role::Active => {
                self.connect(to);
                if state == State::ReqSent {
                    return;
                }
                self.take_response();
                if state == State::RepRcvd {
                    return;
                }
                self.establish();
            }
        }
        match state {
            State::DreqSent => self.disconnect(),
            State::DreqRcvd => drop(self.node.expect(EventKind::Disconnected)),
            State::Timewait => {
                self.node.expect(EventKind::Disconnected);
                self.disconnect();
            }
            _ => {}
        }
    }
}

/// The process that is killed: takes its side as far as it is told, and waits.
#[test]
fn process_that_is_killed() {
    // Run as a test of its own, it has nothing to do.
    let Ok(told) = std::env::var(ROLE) else { return };
    let words: Vec<&str> = told.split(' ').collect();
    let [role, number, own, peer] = words[..] else { panic!("{told}") };
    let role = if role == "Active" { Role::Active } else { Role::Passive };
    let state = CASES.iter().map(|case| case.state).find(|state| format!("{state:?}") == number);
    let mut side = Side { node: Node::start_with_short_timers(own), id: None };
    if role == Role::Passive {
        side.node.listen(PORT);
        println!("listens");
    }
    side.advance(role, SocketAddr::new(peer.parse().unwrap(), PORT), state.unwrap());
    println!("is there");
    loop {
        std::thread::park();
    }
}

/// A process of the other side.
struct Process {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Process {
    fn start(role: Role, state: State, own: &str, peer: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["killed::process_that_is_killed", "--exact", "--nocapture"])
            .env(ROLE, format!("{role:?} {state:?} {own} {peer}"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut process = Self { child, lines };
        if role == Role::Passive {
            process.wait_for("listens");
        }
        process
    }

    fn wait_for(&mut self, text: &str) {
        let said = self.lines.find(|line| line.as_ref().unwrap().ends_with(text));
        assert!(said.is_some(), "the process ended before '{text}'");
    }

    /// Kills it, once it is in its state.
    fn kill(mut self) {
        self.wait_for("is there");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Case {
    /// Brings the survivor to where it meets a peer in its state.
    fn meet(&self, survivor: &mut Side, to: SocketAddr) {
        match self.role {
            Role::Passive => {
                survivor.connect(to);
                if matches!(self.state, State::Idle | State::ReqRcvd) {
                    return;
                }
                survivor.take_response();
                if self.state == State::RepSent {
                    return;
                }
                survivor.establish();
            }
            Role::Active => {
                survivor.take_request();
                if self.state == State::ReqSent {
                    return;
                }
                survivor.accept();
                if self.state == State::RepRcvd {
                    return;
                }
                survivor.node.expect(EventKind::Established);
            }
        }
        match self.state {
            State::DreqSent => drop(survivor.node.expect(EventKind::Disconnected)),
            State::DreqRcvd => survivor.disconnect(),
            State::Timewait => {
                survivor.disconnect();
                assert_eq!(survivor.node.expect(EventKind::Disconnected).status, 0);
            }
            _ => {}
        }
    }

    fn run(&self, number: usize) {
        let host = u8::try_from(number).unwrap();
        let (own, peer) = (loopback(120, host).to_string(), loopback(121, host).to_string());
        let to = SocketAddr::new(peer.parse().unwrap(), PORT);
        let mut survivor = Side { node: Node::start_with_short_timers(&own), id: None };
        survivor.node.listen(PORT);
        let process = Process::start(self.role, self.state, &peer, &own);
        if self.state == State::Idle {
            // A listener is killed before it is asked.
            process.kill();
            self.meet(&mut survivor, to);
        } else {
            self.meet(&mut survivor, to);
            process.kill();
        }
        match self.state {
            State::ReqSent => survivor.accept(),
            State::RepSent => survivor.establish(),
            _ => {}
        }
        let first = survivor.id();
        let successor = |survivor: &mut Side| {
            let established = case(self.role, State::Established, true, DISCONNECTED);
            let process = Process::start(self.role, State::Established, &peer, &own);
            established.meet(survivor, to);
            process.kill();
        };
        // At once, where it is not asked for what its predecessor left.
        if self.disconnects {
            successor(&mut survivor);
            let id = first;
            survivor.node.run(|manager, now| manager.disconnect(now, id)).unwrap();
        }
        let event = survivor.node.event();
        let told = (event.kind, event.id, event.status);
        assert_eq!(told, (self.last, first, self.status), "{:?} in {:?}", self.role, self.state);
        if !self.disconnects {
            // So that its TIMEWAIT_EXIT does not come between.
            survivor.node.run(|manager, now| manager.destroy_id(now, first)).unwrap();
            successor(&mut survivor);
        }
    }
}

#[test]
fn killed_process_is_noticed_and_its_successor_connects() {
    std::thread::scope(|scope| {
        for (number, case) in CASES.iter().enumerate() {
            scope.spawn(move || case.run(number + 1));
        }
    });
}
