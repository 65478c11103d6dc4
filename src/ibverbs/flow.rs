//! Rules that steer packets of any kind to queue pairs, and counters.

use core::ffi::{c_uint, c_void};

use super::context::ibv_context;
use super::layout::layouts;

layouts! {
    /// A rule. What it looks at follows it in memory.
    struct ibv_flow_attr {
        comp_mask: u32,
        r#type: c_uint,
        size: u16,
        priority: u16,
        num_of_specs: u8,
        port: u8,
        flags: u32,
    }

    /// A flow steering rule.
    struct ibv_flow {
        comp_mask: u32,
        context: *mut ibv_context,
        handle: u32,
    }

    /// Header of each specification of a rule.
    struct ibv_flow_spec_hdr in "struct ibv_flow_spec" at "hdr" {
        r#type: c_uint,
        size: u16,
    }

    /// Fields of an Ethernet header that a rule compares.
    struct ibv_flow_eth_filter {
        dst_mac: [u8; 6],
        src_mac: [u8; 6],
        ether_type: u16,
        vlan_tag: u16,
    }

    /// Ethernet specification of a rule.
    struct ibv_flow_spec_eth {
        r#type: c_uint,
        size: u16,
        val: ibv_flow_eth_filter,
        mask: ibv_flow_eth_filter,
    }

    /// Fields of an IPv4 header that a rule compares.
    struct ibv_flow_ipv4_filter {
        src_ip: u32,
        dst_ip: u32,
    }

    /// IPv4 specification of a rule.
    struct ibv_flow_spec_ipv4 {
        r#type: c_uint,
        size: u16,
        val: ibv_flow_ipv4_filter,
        mask: ibv_flow_ipv4_filter,
    }

    /// Fields of an IPv4 header that a rule compares, extended.
    struct ibv_flow_ipv4_ext_filter {
        src_ip: u32,
        dst_ip: u32,
        proto: u8,
        tos: u8,
        ttl: u8,
        flags: u8,
    }

    /// Extended IPv4 specification of a rule.
    struct ibv_flow_spec_ipv4_ext {
        r#type: c_uint,
        size: u16,
        val: ibv_flow_ipv4_ext_filter,
        mask: ibv_flow_ipv4_ext_filter,
    }

    /// Fields of an IPv6 header that a rule compares.
    struct ibv_flow_ipv6_filter {
        src_ip: [u8; 16],
        dst_ip: [u8; 16],
        flow_label: u32,
        next_hdr: u8,
        traffic_class: u8,
        hop_limit: u8,
    }

    /// IPv6 specification of a rule.
    struct ibv_flow_spec_ipv6 {
        r#type: c_uint,
        size: u16,
        val: ibv_flow_ipv6_filter,
        mask: ibv_flow_ipv6_filter,
    }

    /// Fields of a TCP or UDP header that a rule compares.
    struct ibv_flow_tcp_udp_filter {
        dst_port: u16,
        src_port: u16,
    }

    /// TCP or UDP specification of a rule.
    struct ibv_flow_spec_tcp_udp {
        r#type: c_uint,
        size: u16,
        val: ibv_flow_tcp_udp_filter,
        mask: ibv_flow_tcp_udp_filter,
    }

    /// Action on the packets of a rule.
    struct ibv_flow_action {
        context: *mut ibv_context,
    }

    /// Attributes of an action on IPsec packets.
    struct ibv_flow_action_esp_attr {
        esp_attr: *mut c_void,
        keymat_proto: c_uint,
        keymat_len: u16,
        keymat_ptr: *mut c_void,
        replay_proto: c_uint,
        replay_len: u16,
        replay_ptr: *mut c_void,
        esp_encap: *mut c_void,
        comp_mask: u32,
        esn: u32,
    }

    /// A set of counters.
    struct ibv_counters {
        context: *mut ibv_context,
    }

    /// Attributes of a new set of counters; none are defined yet.
    struct ibv_counters_init_attr {
        comp_mask: u32,
    }

    /// Attachment of a counter: the quantity that it counts.
    struct ibv_counter_attach_attr {
        counter_desc: c_uint,
        index: u32,
        comp_mask: u32,
    }
}
