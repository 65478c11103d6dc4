//! Table of operations: their properties that do not depend on service or position in a message.

/// Operation that a packet requests or answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Data for a receive buffer.
    Send,
    /// Data for an address at the peer.
    Write,
    /// A request for data from an address at the peer.
    ReadRequest,
    /// Data that was requested, or the response to a flush or an atomic write.
    ReadResponse,
    /// An acknowledgement, positive or negative.
    Acknowledge,
    /// The response to an atomic operation: the value before it.
    AtomicAcknowledge,
    /// An acknowledgement of single packets behind a gap: an extension of this crate, which is sent
    /// only to peers that agreed to it.
    SelectiveAcknowledge,
    /// Compare and swap.
    CompareSwap,
    /// Fetch and add.
    FetchAdd,
    /// Resynchronization, of the reliable datagram service.
    Resync,
    /// A request to make earlier writes visible or persistent.
    Flush,
    /// Eight bytes written at once.
    AtomicWrite,
    /// A congestion notification.
    Cnp,
}

/// The right that a request needs: of the responder's queue pair, and of the memory that it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Right {
    /// No right: the operation names no memory.
    None,
    /// Remote write.
    Write,
    /// Remote read.
    Read,
    /// Remote atomic.
    Atomic,
    /// The right to flush to the placements that its FETH names.
    Flush,
}

/// Response of a responder of a reliable service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Response {
    /// No response: the operation is not a request.
    None,
    /// An acknowledgement, which may be coalesced with others.
    Acknowledge,
    /// READ responses of its own, with data or empty.
    Read,
    /// An atomic acknowledgement of its own.
    Atomic,
}

impl Response {
    /// Whether the request has a response of its own, which no acknowledgement of a later request
    /// replaces.
    pub const fn is_own(self) -> bool {
        matches!(self, Self::Read | Self::Atomic)
    }

    /// Whether packets of `operation` are this response.
    pub const fn is_by(self, operation: Operation) -> bool {
        match self {
            Self::None => false,
            Self::Acknowledge => matches!(operation, Operation::Acknowledge),
            Self::Read => matches!(operation, Operation::ReadResponse),
            Self::Atomic => matches!(operation, Operation::AtomicAcknowledge),
        }
    }
}

macro_rules! operations {
    ($($operation:ident: $right:ident, $response:ident, $counts:literal;)*) => {
        impl Operation {
            /// Returns the right that its requests need.
            #[inline]
            pub const fn right(self) -> Right {
                match self {
                    $(Self::$operation => Right::$right,)*
                }
            }

            /// Returns the response of a responder of a reliable service to its requests.
            #[inline]
            pub const fn response(self) -> Response {
                match self {
                    $(Self::$operation => Response::$response,)*
                }
            }

            /// Whether its requests take responder resources: whether `max_rd_atomic` counts them.
            #[inline]
            pub const fn counts_as_rd_atomic(self) -> bool {
                match self {
                    $(Self::$operation => $counts,)*
                }
            }
        }
    };
}

// Operation: the right that it needs, its response, whether it counts as READ or ATOMIC.
operations! {
    Send: None, Acknowledge, false;
    Write: Write, Acknowledge, false;
    ReadRequest: Read, Read, true;
    ReadResponse: None, None, false;
    Acknowledge: None, None, false;
    AtomicAcknowledge: None, None, false;
    SelectiveAcknowledge: None, None, false;
    CompareSwap: Atomic, Atomic, true;
    FetchAdd: Atomic, Atomic, true;
    Resync: None, Acknowledge, false;
    Flush: Flush, Read, false;
    AtomicWrite: Write, Read, true;
    Cnp: None, None, false;
}
