//! What a side has: queue pairs, buffers, windows, and the rights to them.

use serde::{Deserialize, Serialize};

use super::super::expand::Expr;
use crate::verbs::Access;

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
    /// Maximum number of retransmissions without progress.
    pub retry_cnt: Option<u32>,
    /// Maximum number of retries after RNR NAKs; 7 sets no limit.
    pub rnr_retry: Option<u32>,
    /// How long a peer waits when there is no receive buffer, as the code of verbs.
    pub min_rnr_timer: Option<u32>,
    /// Maximum number of READs and ATOMICs in flight, each way.
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
    pub(super) fn main() -> Self {
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

/// The rights that go by these names.
pub(in super::super) fn access_of(names: &[String]) -> Result<Access, String> {
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
pub(in super::super) const ALL_RIGHTS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND);
