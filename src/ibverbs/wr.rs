//! Structures of work requests, as `infiniband/verbs.h` declares them.
// Rule: T-36.

use core::ffi::{c_int, c_uint, c_void};

use super::address::ibv_ah;
use super::layout::layouts;
use super::memory::{ibv_mw, ibv_mw_bind_info};

layouts! {
    /// A piece of local memory.
    struct ibv_sge {
        addr: u64,
        length: u32,
        lkey: u32,
    }

    /// Bytes that are copied when they are posted.
    struct ibv_data_buf {
        addr: *mut c_void,
        length: usize,
    }

    /// A send.
    struct ibv_send_wr {
        wr_id: u64,
        next: *mut ibv_send_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
        opcode: c_uint,
        send_flags: c_uint,
        imm_data: u32,
        wr: ibv_send_wr_peer,
        qp_type: ibv_send_wr_qp_type,
        more as "bind_mw": ibv_send_wr_more,
    }

    /// Parameters of a send, by kind of operation.
    union ibv_send_wr_peer in "struct ibv_send_wr" at "wr" {
        rdma: ibv_send_wr_rdma,
        atomic: ibv_send_wr_atomic,
        ud: ibv_send_wr_ud,
    }

    /// Remote memory of a READ or WRITE.
    struct ibv_send_wr_rdma in "struct ibv_send_wr" at "wr.rdma" {
        remote_addr: u64,
        rkey: u32,
    }

    /// Remote memory and operands of an ATOMIC.
    struct ibv_send_wr_atomic in "struct ibv_send_wr" at "wr.atomic" {
        remote_addr: u64,
        compare_add: u64,
        swap: u64,
        rkey: u32,
    }

    /// Destination of a datagram.
    struct ibv_send_wr_ud in "struct ibv_send_wr" at "wr.ud" {
        ah: *mut ibv_ah,
        remote_qpn: u32,
        remote_qkey: u32,
    }

    /// Parameters of a send, by type of queue pair.
    union ibv_send_wr_qp_type in "struct ibv_send_wr" at "qp_type" {
        xrc: ibv_send_wr_xrc,
    }

    /// Shared receive queue of the peer that a message is for.
    struct ibv_send_wr_xrc in "struct ibv_send_wr" at "qp_type.xrc" {
        remote_srqn: u32,
    }

    /// Further parameters of two operations. In C this union has no name.
    union ibv_send_wr_more in "struct ibv_send_wr" at "*" {
        bind_mw: ibv_send_wr_bind_mw,
        tso: ibv_send_wr_tso,
    }

    /// Memory window to bind, and its attributes.
    struct ibv_send_wr_bind_mw in "struct ibv_send_wr" at "bind_mw" {
        mw: *mut ibv_mw,
        rkey: u32,
        bind_info: ibv_mw_bind_info,
    }

    /// Segmentation of a packet.
    struct ibv_send_wr_tso in "struct ibv_send_wr" at "tso" {
        hdr: *mut c_void,
        hdr_sz: u16,
        mss: u16,
    }

    /// A receive.
    struct ibv_recv_wr {
        wr_id: u64,
        next: *mut ibv_recv_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
    }

    /// A change to a list of tags.
    struct ibv_ops_wr {
        wr_id: u64,
        next: *mut ibv_ops_wr,
        opcode: c_uint,
        flags: c_int,
        tm: ibv_ops_wr_tm,
    }

    /// Change of the list of tags.
    struct ibv_ops_wr_tm in "struct ibv_ops_wr" at "tm" {
        unexpected_cnt: u32,
        handle: u32,
        add: ibv_ops_wr_tm_add,
    }

    /// A tag to add, and where to put what has it.
    struct ibv_ops_wr_tm_add in "struct ibv_ops_wr" at "tm.add" {
        recv_wr_id: u64,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
        tag: u64,
        mask: u64,
    }
}
