//! Protocols of control connections, with their versions.

/// Protocol that a client names in its first line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Protocol of `roce bench`.
    Bench,
    /// Protocol of `roce bench -R`: the connection manager connects the queue pairs.
    BenchByCm,
    /// Protocol of `roce replay --to`: a queue pair and memory.
    Offer,
    /// Protocol of `roce ping`.
    Ping,
    /// Protocol of `roce mesh`.
    Mesh,
    /// Protocol of `roce conform`.
    Conform,
}

impl Protocol {
    /// Returns its name and version. Sides of different versions do not talk.
    pub const fn magic(self) -> &'static str {
        match self {
            Self::Bench => "roce-bench 4",
            Self::BenchByCm => "roce-bench-cm 4",
            Self::Offer => "roce-offer 3",
            Self::Ping => "roce-ping 3",
            Self::Mesh => "roce-mesh 3",
            Self::Conform => "roce-conform 3",
        }
    }
}
