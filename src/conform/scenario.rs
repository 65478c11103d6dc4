//! What a person writes.
//!
//! ```toml
//! [[scenario]]
//! name  = "write"
//! about = "A WRITE puts every byte where it belongs."
//! mtu   = [256, 1024]                       # a list is run once for each
//! size  = [0, 1, "mtu-1", "mtu", "5*mtu"]   # numbers, or sums and products with `size` and `mtu`
//! steps = [{ requester = "write" }]         # in this order; who comes next waits for who came before
//! expect.requester = [{ opcode = "rdma_write" }]
//! expect.memory = ["responder 0..size = requester 0"]
//! ```
//!
//! Each side has a queue pair that is connected to the other's, and a buffer `main` of `2*size+128` bytes with all rights,
//! filled with a pattern of its own. What is not named in `expect.memory` must be as it was. A scenario ends when every
//! completion that it expects is there.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::Side;
use super::expand::{Expr, Instance, expand};
use super::memory::Claim;
use crate::verbs::Access;

/// The scenarios that come with the crate, by file.
const BUILT_IN: &[(&str, &str)] = &[
    ("operations.toml", include_str!("scenarios/operations.toml")),
    ("shapes.toml", include_str!("scenarios/shapes.toml")),
    ("faults.toml", include_str!("scenarios/faults.toml")),
    ("not_ready.toml", include_str!("scenarios/not_ready.toml")),
    ("errors.toml", include_str!("scenarios/errors.toml")),
    ("windows.toml", include_str!("scenarios/windows.toml")),
    ("datagrams.toml", include_str!("scenarios/datagrams.toml")),
];

/// What is wrong with a file of scenarios.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{file}: {}{text}", scenario.as_ref().map_or(String::new(), |name| format!("scenario `{name}`: ")))]
pub struct ScenarioError {
    /// Which file.
    pub file: String,
    /// Which scenario of it.
    pub scenario: Option<String>,
    /// Which field, what is wrong with it, and what would not be.
    pub text: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    scenario: Vec<Scenario>,
}

/// One value, or several, each of which is run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Several<T> {
    /// Several.
    Many(Vec<T>),
    /// One.
    One(T),
}

impl<T: Clone> Several<T> {
    /// All of them.
    pub fn all(&self) -> Vec<T> {
        match self {
            Self::One(one) => vec![one.clone()],
            Self::Many(many) => many.clone(),
        }
    }

    /// Whether each is run by itself, and so has a name.
    pub fn varies(&self) -> bool {
        matches!(self, Self::Many(_))
    }
}

/// A story with two sides.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// What it is called.
    pub name: String,
    /// What it shows, in a sentence.
    pub about: String,
    /// The kind of its queue pairs: RC if nothing is said.
    #[serde(default, rename = "type")]
    pub kind: Kind,
    /// The payload of a packet: 1024 if nothing is said.
    #[serde(default = "usual_mtu")]
    pub mtu: Several<u32>,
    /// The length of its messages, for expressions: 64 if nothing is said.
    #[serde(default = "usual_size")]
    pub size: Several<Expr>,
    /// What a step `op` posts.
    #[serde(default = "no_op")]
    pub op: Several<Action>,
    /// How many queue pairs each side has: 1 if nothing is said.
    #[serde(default = "one")]
    pub qps: usize,
    /// Attributes of the queue pairs of both sides.
    #[serde(default)]
    pub qp: QpSpec,
    /// What the requester has.
    #[serde(default)]
    pub requester: SideSpec,
    /// What the responder has.
    #[serde(default)]
    pub responder: SideSpec,
    /// What is done, in this order.
    pub steps: Vec<Step>,
    /// What the wire does.
    #[serde(default)]
    pub faults: Vec<Fault>,
    /// What must hold.
    #[serde(default)]
    pub expect: Expect,
    /// How long it may take, in seconds: 5 if nothing is said.
    #[serde(default = "usual_limit")]
    pub limit: u64,
}

fn usual_mtu() -> Several<u32> {
    Several::One(1024)
}

fn usual_size() -> Several<Expr> {
    Several::One(Expr::Number(64))
}

fn no_op() -> Several<Action> {
    Several::One(Action::Wait)
}

const fn usual_limit() -> u64 {
    5
}

const fn one() -> usize {
    1
}

/// The kind of a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// Reliable connection.
    #[default]
    #[serde(rename = "RC")]
    Rc,
    /// Unreliable connection.
    #[serde(rename = "UC")]
    Uc,
    /// Unreliable datagram.
    #[serde(rename = "UD")]
    Ud,
}

/// Attributes of a queue pair; what is not said is what suits most.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QpSpec {
    /// How long to wait for an acknowledgement, as the code of verbs: 4.096 µs times two to the power of it.
    pub timeout: Option<u32>,
    /// How often to send again.
    pub retry_cnt: Option<u32>,
    /// How often to send again to a receiver that is not ready; 7 is for ever.
    pub rnr_retry: Option<u32>,
    /// How long a peer waits when there is no receive buffer, as the code of verbs.
    pub min_rnr_timer: Option<u32>,
    /// How many reads and atomics to have under way, each way.
    pub rd_atomic: Option<u8>,
    /// The first sequence number to send.
    pub psn: Option<u32>,
    /// The queue key of datagrams.
    pub qkey: Option<u32>,
    /// What the peer may do.
    pub access: Option<Vec<String>>,
}

impl QpSpec {
    /// What this says, and otherwise what `other` says.
    #[must_use]
    pub fn or(&self, other: &Self) -> Self {
        Self {
            timeout: self.timeout.or(other.timeout),
            retry_cnt: self.retry_cnt.or(other.retry_cnt),
            rnr_retry: self.rnr_retry.or(other.rnr_retry),
            min_rnr_timer: self.min_rnr_timer.or(other.min_rnr_timer),
            rd_atomic: self.rd_atomic.or(other.rd_atomic),
            psn: self.psn.or(other.psn),
            qkey: self.qkey.or(other.qkey),
            access: self.access.clone().or_else(|| other.access.clone()),
        }
    }
}

/// What a side has.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SideSpec {
    /// Attributes of its queue pairs that are not those of both.
    #[serde(default)]
    pub qp: QpSpec,
    /// Its buffers. There is always one that is called `main`.
    #[serde(default)]
    pub buffers: Vec<BufferSpec>,
    /// Its memory windows.
    #[serde(default)]
    pub windows: Vec<WindowSpec>,
    /// Whether its queue pairs share a receive queue, and below how many receives that tells.
    pub srq_limit: Option<u32>,
}

/// A buffer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BufferSpec {
    /// What it is called.
    pub name: String,
    /// How long it is.
    #[serde(default = "usual_len")]
    pub len: Expr,
    /// What may be done with it; everything if nothing is said.
    pub access: Option<Vec<String>>,
    /// Whether it belongs to another protection domain than the queue pairs.
    #[serde(default)]
    pub stranger: bool,
    /// Numbers at its beginning, of eight bytes each, as the machine writes them.
    #[serde(default)]
    pub words: Vec<u64>,
}

fn usual_len() -> Expr {
    Expr::Text("2*size+128".to_owned())
}

impl BufferSpec {
    fn main() -> Self {
        let name = MAIN.to_owned();
        Self { name, len: usual_len(), access: None, stranger: false, words: Vec::new() }
    }
}

/// The buffer that every side has.
pub const MAIN: &str = "main";

/// A memory window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WindowSpec {
    /// What it is called.
    pub name: String,
    /// 1 or 2.
    #[serde(rename = "type", default = "two")]
    pub kind: u8,
}

const fn two() -> u8 {
    2
}

/// What a step does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "each is the verb that it names")]
pub enum Action {
    Send,
    SendImm,
    SendInv,
    Write,
    WriteImm,
    Read,
    FetchAdd,
    CompareSwap,
    AtomicWrite,
    Flush,
    BindMw,
    LocalInv,
    Recv,
    SrqRecv,
    /// Wait for so many completions more (`count`, or 1).
    Wait,
    /// Wait for so many milliseconds.
    Sleep,
    /// Wait until such a packet has come from the peer; where nobody can look, for 20 milliseconds.
    See,
    /// Take the queue pair to another state.
    Modify,
    /// What the scenario's `op` says.
    Op,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// How a request is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "each is the flag that it names")]
pub enum Flag {
    Fence,
    Solicited,
    Inline,
    /// Without a completion, unless it fails. All others have one.
    Unsignaled,
}

/// One thing that a side does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// What the requester does.
    pub requester: Option<Action>,
    /// What the responder does. One of the two is there.
    pub responder: Option<Action>,
    /// Which queue pair, from 0.
    #[serde(default)]
    pub qp: usize,
    /// How many bytes: `size` if nothing is said, 40 more for a receive of datagrams, 8 for atomics.
    pub len: Option<Expr>,
    /// The local buffer: `main` if nothing is said.
    pub buffer: Option<String>,
    /// Where in it.
    pub at: Option<Expr>,
    /// The lengths of several pieces, 16 bytes apart, instead of one of `len`.
    pub sges: Option<Vec<Expr>>,
    /// The buffer or window at the peer: `main` if nothing is said. Of `bind_mw` and `local_inv`, the window here.
    pub remote: Option<String>,
    /// Where in it; may lie outside.
    pub to: Option<Expr>,
    /// How it is posted.
    #[serde(default)]
    pub flags: Vec<Flag>,
    /// Immediate data.
    pub imm: Option<u32>,
    /// What `fetch_add` adds, and `compare_swap` puts.
    pub value: Option<u64>,
    /// What `compare_swap` expects.
    pub compare: Option<u64>,
    /// A wrong remote key.
    #[serde(default)]
    pub wrong_rkey: bool,
    /// A wrong local key.
    #[serde(default)]
    pub wrong_lkey: bool,
    /// Another queue key than the peer's.
    pub qkey: Option<u32>,
    /// A queue pair that the peer does not have.
    #[serde(default)]
    pub wrong_qpn: bool,
    /// What a window shall allow.
    pub access: Option<Vec<String>>,
    /// Whether posting it must be refused.
    #[serde(default)]
    pub refused: bool,
    /// How often it is done.
    pub times: Option<u32>,
    /// How many completions `wait` waits for.
    pub count: Option<u32>,
    /// The packet that `see` waits for: a word of its opcode.
    pub packet: Option<String>,
    /// How many milliseconds `sleep` takes.
    pub ms: Option<u64>,
    /// To which state `modify` goes: reset, init, err.
    pub state: Option<String>,
}

impl Step {
    /// Who does it, and what.
    pub fn who(&self) -> Option<(Side, Action)> {
        match (self.requester, self.responder) {
            (Some(action), None) => Some((Side::Requester, action)),
            (None, Some(action)) => Some((Side::Responder, action)),
            _ => None,
        }
    }
}

/// What the wire does to a packet. All that is said of the packet must be so.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// Who sent it.
    pub from: Side,
    /// Its PSN, counted from the first of the requests that it belongs to.
    pub psn: Option<u32>,
    /// What it is: a word of its opcode (`ACKNOWLEDGE`, `READ_RESPONSE`), as `roce decode` prints it.
    pub packet: Option<String>,
    /// Which time such a packet passes, from 1; 0 is every time.
    #[serde(default = "first")]
    pub nth: u32,
    /// What is done.
    #[serde(rename = "do")]
    pub deed: Deed,
}

const fn first() -> u32 {
    1
}

/// What is done to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Deed {
    /// It is lost.
    Drop,
    /// It arrives twice.
    Duplicate,
    /// It arrives ten milliseconds later.
    Delay,
    /// It arrives behind the next one.
    Swap,
    /// A bit of it changes, so that the ICRC is wrong.
    Corrupt,
}

/// What must hold in the end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expect {
    /// The completions of the requester, those of sends before those of receives.
    #[serde(default)]
    pub requester: Vec<Done>,
    /// The completions of the responder.
    #[serde(default)]
    pub responder: Vec<Done>,
    /// What memory holds: `SIDE[.BUFFER] FROM..TO = SIDE[.BUFFER] FROM` (as it was at the beginning), `= word N`, or
    /// `= anything`. All other bytes are as they were.
    #[serde(default)]
    pub memory: Vec<String>,
    /// The state of the requester's queue pairs: RTS if nothing is said.
    pub requester_state: Option<String>,
    /// The state of the responder's queue pairs.
    pub responder_state: Option<String>,
    /// What else the requester is told: `qp_access_err`.
    #[serde(default)]
    pub requester_events: Vec<String>,
    /// What else the responder is told.
    #[serde(default)]
    pub responder_events: Vec<String>,
    /// How often packets are sent, where that is not left to time. It is looked at where packets can be seen.
    #[serde(default)]
    pub packets: Vec<Sent>,
}

/// How often a side sends such packets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sent {
    /// Who sends them.
    pub from: Side,
    /// A word of what `roce decode` tells of them: `SEND_ONLY`, `RNR`.
    pub packet: String,
    /// How often.
    pub times: usize,
}

impl Expect {
    /// The completions of a side.
    pub fn of(&self, side: Side) -> &[Done] {
        match side {
            Side::Requester => &self.requester,
            Side::Responder => &self.responder,
        }
    }

    /// The state that the queue pairs of a side shall have.
    pub fn state_of(&self, side: Side) -> &str {
        let state = match side {
            Side::Requester => &self.requester_state,
            Side::Responder => &self.responder_state,
        };
        state.as_deref().unwrap_or("rts")
    }

    /// The events of a side.
    pub fn events_of(&self, side: Side) -> &[String] {
        match side {
            Side::Requester => &self.requester_events,
            Side::Responder => &self.responder_events,
        }
    }
}

/// A completion. What is not said may be anything.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Done {
    /// Its status: `success` if nothing is said.
    pub status: Option<String>,
    /// What it was. `op` is what the scenario's `op` completes as.
    pub opcode: Option<String>,
    /// How many bytes.
    pub byte_len: Option<Expr>,
    /// Its immediate data.
    pub imm: Option<u32>,
    /// The window that was invalidated.
    pub invalidated: Option<String>,
    /// Whether a receive completes; if nothing is said, so it is at the responder and not at the requester.
    pub recv: Option<bool>,
    /// How many such completions: 1 if nothing is said.
    pub times: Option<u32>,
}

impl Scenario {
    /// What a side has.
    pub fn side(&self, side: Side) -> &SideSpec {
        match side {
            Side::Requester => &self.requester,
            Side::Responder => &self.responder,
        }
    }

    /// The buffers of a side, `main` among them.
    pub fn buffers(&self, side: Side) -> Vec<BufferSpec> {
        let own = &self.side(side).buffers;
        let main = (!own.iter().any(|buffer| buffer.name == MAIN)).then(BufferSpec::main);
        main.into_iter().chain(own.iter().cloned()).collect()
    }
}

/// The rights that go by these names.
pub(super) fn access_of(names: &[String]) -> Result<Access, String> {
    let each = names.iter().map(|name| {
        Access::from_name(&name.to_ascii_uppercase()).ok_or_else(|| {
            let known: Vec<String> =
                Access::all().iter_names().map(|(name, _)| name.to_ascii_lowercase()).collect();
            format!("there is no right `{name}`; there are {}", known.join(", "))
        })
    });
    each.collect::<Result<Vec<Access>, String>>().map(|all| all.into_iter().collect())
}

/// All rights that a scenario may need, of those that every device has.
pub(super) const ALL_RIGHTS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND);

/// The instances of all scenarios that come with the crate.
pub fn built_in() -> Result<Vec<Instance>, ScenarioError> {
    let mut all = Vec::new();
    for (file, text) in BUILT_IN {
        all.extend(read(file, text)?);
    }
    Ok(all)
}

/// The instances of the scenarios of a file.
pub fn read(file: &str, text: &str) -> Result<Vec<Instance>, ScenarioError> {
    let wrong = |scenario: Option<&str>, text: String| ScenarioError {
        file: file.to_owned(),
        scenario: scenario.map(ToOwned::to_owned),
        text,
    };
    let parsed: File = toml::from_str(text).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        wrong(name_before(before, text, error.span()), error.to_string())
    })?;
    if parsed.scenario.is_empty() {
        return Err(wrong(None, "there is no [[scenario]] in it".to_owned()));
    }
    let mut names = BTreeSet::new();
    let mut all = Vec::new();
    for scenario in parsed.scenario {
        let name = scenario.name.clone();
        if !names.insert(name.clone()) {
            return Err(wrong(Some(&name), "name: another scenario has it".to_owned()));
        }
        check(&scenario).map_err(|text| wrong(Some(&name), text))?;
        all.extend(expand(scenario).map_err(|text| wrong(Some(&name), text))?);
    }
    Ok(all)
}

/// The name of the scenario that an error stands in: the last that is told before it, or the first within it.
fn name_before<'t>(
    before: &'t str,
    text: &'t str,
    span: Option<std::ops::Range<usize>>,
) -> Option<&'t str> {
    let within = span.and_then(|span| text.get(span)).unwrap_or_default();
    let name = |line: &'t str| {
        let (key, value) = line.split_once('=')?;
        (key.trim() == "name").then(|| value.trim().trim_matches('"'))
    };
    let since = before.rfind("[[scenario]]").and_then(|at| before.get(at..)).unwrap_or(before);
    since.lines().find_map(name).or_else(|| within.lines().find_map(name))
}

/// Whether everything that is named is there.
fn check(scenario: &Scenario) -> Result<(), String> {
    if scenario.qps == 0 || scenario.qps > QPS_MAX {
        return Err(format!("qps: {} is not between 1 and {QPS_MAX}", scenario.qps));
    }
    for side in Side::BOTH {
        let spec = scenario.side(side);
        for buffer in &spec.buffers {
            let names = buffer.access.as_deref().unwrap_or_default();
            access_of(names)
                .map_err(|text| format!("{side}.buffers.{}.access: {text}", buffer.name))?;
        }
        if let Some(window) = spec.windows.iter().find(|window| !matches!(window.kind, 1 | 2)) {
            return Err(format!("{side}.windows.{}.type: windows are of type 1 or 2", window.name));
        }
        let access = spec.qp.access.as_deref().unwrap_or_default();
        access_of(access).map_err(|text| format!("{side}.qp.access: {text}"))?;
    }
    for (at, step) in scenario.steps.iter().enumerate() {
        check_step(scenario, step).map_err(|text| format!("steps[{at}].{text}"))?;
    }
    for (at, text) in scenario.expect.memory.iter().enumerate() {
        let claim = Claim::parse(text).map_err(|text| format!("expect.memory[{at}]: {text}"))?;
        for (side, buffer) in claim.names() {
            known(scenario, side, buffer, false)
                .map_err(|text| format!("expect.memory[{at}]: {text}"))?;
        }
    }
    Ok(())
}

/// The most queue pairs of a side.
const QPS_MAX: usize = 16;

fn check_step(scenario: &Scenario, step: &Step) -> Result<(), String> {
    let Some((side, action)) = step.who() else {
        return Err("requester or responder: one of the two does something, not both".to_owned());
    };
    if step.qp >= scenario.qps {
        return Err(format!("qp: there are {} from 0; `qps` says how many", scenario.qps));
    }
    if let Some(buffer) = &step.buffer {
        known(scenario, side, buffer, false).map_err(|text| format!("buffer: {text}"))?;
    }
    let here = matches!(action, Action::BindMw | Action::LocalInv);
    if let Some(remote) = &step.remote {
        let of = if here { side } else { side.other() };
        known(scenario, of, remote, true).map_err(|text| format!("remote: {text}"))?;
    } else if here {
        return Err(format!("remote: {action} needs the name of a window"));
    }
    if action == Action::See && step.packet.is_none() {
        return Err("packet: see needs to be told which: a word of its opcode".to_owned());
    }
    if action == Action::Modify && step.state.is_none() {
        return Err("state: modify needs to be told which: reset, init or err".to_owned());
    }
    let names = step.access.as_deref().unwrap_or_default();
    access_of(names).map(drop).map_err(|text| format!("access: {text}"))
}

/// Whether a side has such a buffer, or window.
fn known(scenario: &Scenario, side: Side, name: &str, windows: bool) -> Result<(), String> {
    let mut names: Vec<String> = scenario.buffers(side).into_iter().map(|it| it.name).collect();
    if windows {
        names.extend(scenario.side(side).windows.iter().map(|window| window.name.clone()));
    }
    if names.iter().any(|known| known == name) {
        return Ok(());
    }
    Err(format!("the {side} has no `{name}`; it has {}", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
[[scenario]]
name = "first"
about = "It does something."
steps = [{ requester = "send" }]

[[scenario]]
name = "second"
about = "It does something else."
mtu = [256, 1024]
size = ["mtu", 3]
steps = [{ responder = "recv", buffer = "small" }, { requester = "send", len = "size+1" }]
responder.buffers = [{ name = "small", len = 8, access = ["local_write"] }]
expect.memory = ["responder.small 0..8 = requester 0"]
"#;

    #[test]
    fn what_is_varied_becomes_instances_with_names() {
        let all = read("x.toml", GOOD).unwrap();
        let names: Vec<_> = all.iter().map(|instance| instance.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "first",
                "second/size=mtu,mtu=256",
                "second/size=3,mtu=256",
                "second/size=mtu,mtu=1024",
                "second/size=3,mtu=1024"
            ]
        );
        assert_eq!(all[3].size, 1024);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_cure() {
        let wrong = [
            (
                "buffer = \"small\"",
                "buffer = \"tiny\"",
                "steps[0].buffer: the responder has no `tiny`; it has main, small",
            ),
            (
                "responder = \"recv\", ",
                "responder = \"recv\", requester = \"send\", ",
                "steps[0].requester or responder",
            ),
            (
                "local_write",
                "lokal_write",
                "there is no right `lokal_write`; there are local_write",
            ),
            (
                "\"size+1\"",
                "\"sise+1\"",
                "there is no `sise` to count with; there are size and mtu",
            ),
            ("len = \"size+1\"", "lenn = 1", "unknown field `lenn`, expected one of"),
            ("\"recv\"", "\"receive\"", "unknown variant `receive`"),
            ("0..8 =", "0-8 =", "expect.memory[0]"),
            ("name = \"second\"", "name = \"first\"", "another scenario has it"),
        ];
        for (from, to, message) in wrong {
            let text = GOOD.replace(from, to);
            assert_ne!(text, GOOD);
            let error = read("x.toml", &text).unwrap_err();
            let said = error.to_string();
            assert!(said.contains(message), "{said}");
            assert!(said.starts_with("x.toml: scenario `"), "{said}");
        }
        assert!(read("y.toml", "").unwrap_err().to_string().contains("no [[scenario]]"));
    }

    #[test]
    fn every_scenario_of_the_crate_is_sound() {
        let all = built_in().unwrap();
        let names: BTreeSet<_> = all.iter().map(|instance| &instance.name).collect();
        assert_eq!(names.len(), all.len(), "names are unique");
        assert!(all.iter().all(|instance| instance.scenario.about.ends_with('.')));
    }
}
