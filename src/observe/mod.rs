//! A connection as its packets show it: what `analysis` and `replay` must both know, told once and
//! judged by neither.
//!
//! - [`end`]: the two ends of a connection.
//! - [`packet`], [`sightings`]: what must be known of one packet.
//! - [`agreement`]: what the connection manager agreed.
//! - [`mtu`]: path MTUs, and the sizes of READs at them.
//! - [`sequence`]: PSNs unwrapped to numbers that never wrap.
//! - [`transmissions`]: request packets of one requester, in the order of their sequence numbers.
//! - [`timing`], [`round_trip`]: times that hold for every requester, and those of one.
//! - [`disorder`]: order of arrival at one point.
//! - [`requester`]: what made a requester go back, or may have.
//! - [`responses`]: READ and ATOMIC responses in the order in which a responder sends them.
#![forbid(unsafe_code)]

pub(crate) mod agreement;
pub(crate) mod disorder;
pub(crate) mod end;
pub(crate) mod fold_map;
pub(crate) mod mtu;
pub(crate) mod packet;
pub(crate) mod requester;
pub(crate) mod responses;
pub(crate) mod round_trip;
pub(crate) mod sequence;
pub(crate) mod sightings;
pub(crate) mod timing;
pub(crate) mod transmissions;
