//! Objects of a side: queue pairs, buffers, windows, and access rights.

use serde::{Deserialize, Serialize};

use super::super::expand::Expr;
use crate::verbs::Access;

/// Type of a queue pair.
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

/// Attributes of a queue pair; those that are not given have defaults that suit most scenarios.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QpSpec {
    /// Retransmission timeout as the code of verbs: 4.096 µs · 2^code.
    pub timeout: Option<u32>,
    /// Maximum number of retransmissions without progress.
    pub retry_cnt: Option<u32>,
    /// Maximum number of retries after RNR NAKs; 7 sets no limit.
    pub rnr_retry: Option<u32>,
    /// RNR timer that the responder sends, as the code of verbs.
    pub min_rnr_timer: Option<u32>,
    /// Maximum number of READs and ATOMICs in flight, each way.
    pub rd_atomic: Option<u8>,
    /// Initial PSN.
    pub psn: Option<u32>,
    /// Q_Key of datagrams.
    pub qkey: Option<u32>,
    /// Access rights of the peer.
    pub access: Option<Vec<String>>,
}

impl QpSpec {
    /// Returns these attributes, with those that are not given taken from `other`.
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

/// Objects of a side.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SideSpec {
    /// Attributes of its queue pairs that differ from the scenario's.
    #[serde(default)]
    pub qp: QpSpec,
    /// Buffers. There is always one named `main`.
    #[serde(default)]
    pub buffers: Vec<BufferSpec>,
    /// Memory windows.
    #[serde(default)]
    pub windows: Vec<WindowSpec>,
    /// Limit of the shared receive queue of its queue pairs; without one each has its own queue.
    pub srq_limit: Option<u32>,
}

/// A buffer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BufferSpec {
    /// Name.
    pub name: String,
    /// Length in bytes.
    #[serde(default = "usual_len")]
    pub len: Expr,
    /// Access rights; all by default.
    pub access: Option<Vec<String>>,
    /// Whether it belongs to another protection domain than the queue pairs.
    #[serde(default)]
    pub stranger: bool,
    /// 64-bit numbers at its beginning, in the byte order of the machine.
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

/// Name of the buffer that every side has.
pub const MAIN: &str = "main";

/// A memory window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WindowSpec {
    /// Name.
    pub name: String,
    /// 1 or 2.
    #[serde(rename = "type", default = "two")]
    pub kind: u8,
}

const fn two() -> u8 {
    2
}

/// Returns the rights with these names.
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

/// All rights that scenarios use and every device supports.
pub(in super::super) const ALL_RIGHTS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND);
