//! Fields of the connection manager's messages, and of the RDMA connection manager's header in
//! their private data.

mod connection;
mod request;
mod sidr;

pub(in crate::decode) use connection::{
    CM_APR, CM_DREP, CM_DREQ, CM_LAP, CM_MRA, CM_REJ, CM_REP, CM_RTU,
};
pub(in crate::decode) use request::CM_REQ;
pub(in crate::decode) use sidr::{CM_SIDR_REP, CM_SIDR_REQ};

use crate::decode::Context;
use crate::decode::field::Value;
use crate::wire::Network;
use crate::wire::cm::{IpCm, ServiceId};
use crate::wire::layout::BitRange;

/// A GID, unless the packet came over IPv4: then it is an IPv4 address in disguise.
fn gid_unless_ipv4<'a>(context: &Context<'a>, gid: &'a [u8]) -> Option<Value<'a>> {
    (!is_ipv4(context)).then_some(Value::Bytes(gid))
}

fn gid_if_ipv4<'a>(context: &Context<'a>, gid: &'a [u8]) -> Option<Value<'a>> {
    is_ipv4(context).then_some(Value::Bytes(gid.get(12..)?))
}

fn is_ipv4(context: &Context<'_>) -> bool {
    matches!(context.frame.network(), Some(Network::Ipv4 { .. }))
}

/// The port of a service of the RDMA connection manager.
fn rdma_cm(service_id: BitRange, layer: &[u8]) -> Option<u16> {
    ServiceId(service_id.read(layer)?).to_rdma_cm().map(|(_, port)| port)
}

/// An address of an RDMA connection manager's header, if it is of this IP version.
fn ip_cm_address(layer: &[u8], address: BitRange, version: u64) -> Option<Value<'_>> {
    let bytes = address.slice(layer)?;
    // What claims to be neither is shown in full.
    let is_ipv4 = IpCm::LAYOUT.ip_version.read(layer)? == 4;
    let bytes = if is_ipv4 { bytes.get(12..)? } else { bytes };
    (is_ipv4 == (version == 4)).then_some(Value::Bytes(bytes))
}

/// Header that the RDMA connection manager puts before the consumer's data, under names that begin
/// with `$prefix`.
macro_rules! ip_cm {
    ($table:ident, $prefix:literal) => {
        fields! {
            $table: IpCm {
                whole(concat!($prefix, ".ip_cm"), "IP CM Request Msg");
                bits(concat!($prefix, ".ip_cm.majv"), "IP CM Major Version", major, Hex(2));
                bits(concat!($prefix, ".ip_cm.minv"), "IP CM Minor Version", minor, Hex(2));
                bits(concat!($prefix, ".ip_cm.ipv"), "IP CM IP Version", ip_version, Hex(2));
                bits(concat!($prefix, ".ip_cm.reserved"), "IP CM Reserved", reserved, Hex(2));
                bits(concat!($prefix, ".ip_cm.sport"), "IP CM Source Port", source_port, Hex(4));
                computed(concat!($prefix, ".ip_cm.sip6"), "IP CM Source IP", Ipv6, |_, layer| {
                    ip_cm_address(layer, IpCm::LAYOUT.source, 6)
                });
                computed(concat!($prefix, ".ip_cm.dip6"), "IP CM Destination IP", Ipv6, |_, layer| {
                    ip_cm_address(layer, IpCm::LAYOUT.destination, 6)
                });
                computed(concat!($prefix, ".ip_cm.sip4"), "IP CM Source IP", Ipv4, |_, layer| {
                    ip_cm_address(layer, IpCm::LAYOUT.source, 4)
                });
                computed(concat!($prefix, ".ip_cm.dip4"), "IP CM Destination IP", Ipv4, |_, layer| {
                    ip_cm_address(layer, IpCm::LAYOUT.destination, 4)
                });
                bytes_from(
                    concat!($prefix, ".ip_cm.private"), "IP CM Consumer PrivateData", IpCm::LEN);
            }
        }
    };
}

ip_cm!(IP_CM, "infiniband.cm.req");
ip_cm!(SIDR_IP_CM, "roce.cm.sidr_req");
