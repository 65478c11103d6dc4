//! JSON forms of the wire's own types: addresses and names as text, numbers as numbers, times in
//! nanoseconds.

use serde::Serializer;

use crate::decode::address_text;
use crate::time::Instant;
use crate::wire::aeth::NakCode;
use crate::wire::{Gid, Operation, Psn, Qpn, Service};

pub(super) fn address<S: Serializer>(value: &Gid, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_str(&address_text(*value))
}

pub(super) fn addresses<S: Serializer>(value: &[Gid; 2], out: S) -> Result<S::Ok, S::Error> {
    address_list(value, out)
}

pub(super) fn address_list<S: Serializer>(value: &[Gid], out: S) -> Result<S::Ok, S::Error> {
    out.collect_seq(value.iter().map(|gid| address_text(*gid)))
}

pub(super) fn addresses_or_null<S: Serializer>(
    value: &Option<[Gid; 2]>,
    out: S,
) -> Result<S::Ok, S::Error> {
    match value {
        Some(hosts) => addresses(hosts, out),
        None => out.serialize_none(),
    }
}

pub(super) fn qpn<S: Serializer>(value: &Option<Qpn>, out: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(qpn) => out.serialize_u32(qpn.get()),
        None => out.serialize_none(),
    }
}

pub(super) fn psn<S: Serializer>(value: &Psn, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_u32(value.get())
}

pub(super) fn instant<S: Serializer>(value: &Instant, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_u64(value.as_nanos())
}

pub(super) fn instant_or_null<S: Serializer>(
    value: &Option<Instant>,
    out: S,
) -> Result<S::Ok, S::Error> {
    match value {
        Some(instant) => out.serialize_u64(instant.as_nanos()),
        None => out.serialize_none(),
    }
}

pub(super) fn service<S: Serializer>(value: &Service, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_str(super::service_name(*value))
}

pub(super) fn operation<S: Serializer>(value: &Operation, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_str(super::message::operation_name(*value))
}

pub(super) fn nak<S: Serializer>(value: &NakCode, out: S) -> Result<S::Ok, S::Error> {
    out.collect_str(value)
}
