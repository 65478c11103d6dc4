/* What the kernel and the providers of real NICs answer where the manual leaves a choice, on one
 * soft NIC: queue pairs of one program that are connected to each other. It says what is wrong,
 * or that all is fine. */
#include "verbs.h"

#include <fcntl.h>

enum { ALL_ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static union ibv_gid gid;
static uint64_t memory[512];

static struct ibv_qp *make(enum ibv_qp_type type, struct ibv_cq *to, struct ibv_srq *srq, int depth, int all) {
    struct ibv_qp_init_attr init = {
        .send_cq = to, .recv_cq = to, .srq = srq, .qp_type = type, .sq_sig_all = all,
        .cap = {.max_send_wr = depth, .max_recv_wr = depth, .max_send_sge = 2, .max_recv_sge = 2},
    };
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    CHECK(qp);
    return qp;
}

static struct ibv_ah_attr way(void) {
    return (struct ibv_ah_attr){.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .hop_limit = 64}};
}

static int to_init(struct ibv_qp *qp) {
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 7, .qp_access_flags = ALL_ACCESS};
    int what = qp->qp_type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
    return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | what);
}

/* With every attribute that RC needs, whatever the type is. */
static int to_rtr(struct ibv_qp *qp, uint32_t peer, uint8_t rnr_timer) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer, .rq_psn = 9,
                               .max_dest_rd_atomic = 4, .min_rnr_timer = rnr_timer, .ah_attr = way()};
    return ibv_modify_qp(qp, &attr,
                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                             IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

static int to_rts(struct ibv_qp *qp) {
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 3, .rnr_retry = 7, .sq_psn = 9, .max_rd_atomic = 4};
    return ibv_modify_qp(qp, &attr,
                         IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                             IBV_QP_MAX_QP_RD_ATOMIC);
}

static int to_state(struct ibv_qp *qp, enum ibv_qp_state state) {
    struct ibv_qp_attr attr = {.qp_state = state};
    return ibv_modify_qp(qp, &attr, IBV_QP_STATE);
}

static void connect_to(struct ibv_qp *qp, uint32_t peer) {
    CHECK(!to_init(qp) && !to_rtr(qp, peer, 12) && !to_rts(qp));
}

static void join(struct ibv_qp *a, struct ibv_qp *b) {
    connect_to(a, b->qp_num);
    connect_to(b, a->qp_num);
}

static struct ibv_qp_attr attributes(struct ibv_qp *qp) {
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    CHECK(!ibv_query_qp(qp, &attr, ~0, &init));
    return attr;
}

static int post(struct ibv_qp *qp, enum ibv_wr_opcode opcode, uint64_t id, uint32_t length, int flags) {
    struct ibv_sge sge = {(uintptr_t)memory, length, mr->lkey};
    struct ibv_send_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = flags}, *bad;
    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
        wr.wr.atomic.remote_addr = (uintptr_t)(memory + 256);
        wr.wr.atomic.rkey = mr->rkey;
        wr.wr.atomic.compare_add = 1;
    } else {
        wr.wr.rdma.remote_addr = (uintptr_t)(memory + 256);
        wr.wr.rdma.rkey = mr->rkey;
    }
    return ibv_post_send(qp, &wr, &bad);
}

static struct ibv_wc completes(uint64_t id, enum ibv_wc_status status) {
    struct ibv_wc wc = next(cq);
    if (wc.wr_id != id || wc.status != status)
        fprintf(stderr, "completion %lu: %s\n", (unsigned long)wc.wr_id, ibv_wc_status_str(wc.status));
    CHECK(wc.wr_id == id && wc.status == status);
    return wc;
}

/* The kernel drops from the mask what a half of an extended connection has no use for. */
static void extended_connections(void) {
    struct ibv_xrcd_init_attr domain = {
        .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT};
    struct ibv_xrcd *xrcd = ibv_open_xrcd(context, &domain);
    CHECK(xrcd);
    struct ibv_qp_init_attr_ex init = {
        .qp_type = IBV_QPT_XRC_SEND, .send_cq = cq, .pd = pd, .comp_mask = IBV_QP_INIT_ATTR_PD,
        .cap = {.max_send_wr = 4, .max_send_sge = 1}};
    struct ibv_qp *initiator = ibv_create_qp_ex(context, &init);
    init = (struct ibv_qp_init_attr_ex){
        .qp_type = IBV_QPT_XRC_RECV, .xrcd = xrcd, .comp_mask = IBV_QP_INIT_ATTR_XRCD};
    struct ibv_qp *target = ibv_create_qp_ex(context, &init);
    CHECK(initiator && target);
    connect_to(initiator, target->qp_num);
    connect_to(target, initiator->qp_num);
    struct ibv_qp_attr attr = attributes(initiator);
    CHECK(attr.qp_state == IBV_QPS_RTS && attr.retry_cnt == 3 && attr.max_rd_atomic == 4 && attr.min_rnr_timer == 0);
    attr = attributes(target);
    CHECK(attr.qp_state == IBV_QPS_RTS && attr.max_dest_rd_atomic == 4 && attr.min_rnr_timer == 12);
    CHECK(attr.retry_cnt == 0 && attr.max_rd_atomic == 0);
    /* What RC does not take between these states, these do not take either. */
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS};
    CHECK(ibv_modify_qp(initiator, &attr, IBV_QP_STATE | IBV_QP_DEST_QPN) == EINVAL);
    CHECK(!ibv_destroy_qp(initiator) && !ibv_destroy_qp(target) && !ibv_close_xrcd(xrcd));
}

static void edge_values(void) {
    struct ibv_qp *qp = make(IBV_QPT_RC, cq, NULL, 4, 1);
    CHECK(!to_init(qp) && !to_rtr(qp, 5, 0xe0 | 12));
    CHECK(attributes(qp).min_rnr_timer == 12);
    CHECK(!to_state(qp, IBV_QPS_RESET) && !to_init(qp));
    for (int port = 0; port < 256; port += port == 2 ? 253 : 1) {
        struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = 5,
                                   .max_dest_rd_atomic = 1, .ah_attr = way()};
        attr.ah_attr.port_num = port;
        int result = ibv_modify_qp(qp, &attr,
                                   IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
        CHECK(result == (port == 1 ? 0 : EINVAL));
        if (port == 1)
            CHECK(!to_state(qp, IBV_QPS_RESET) && !to_init(qp));
        struct ibv_ah_attr ah_attr = way();
        ah_attr.port_num = port;
        errno = 0;
        struct ibv_ah *ah = ibv_create_ah(pd, &ah_attr);
        CHECK(port == 1 ? ah && !ibv_destroy_ah(ah) : !ah && errno == EINVAL);
    }
    CHECK(!ibv_destroy_qp(qp));
}

static void atomics(void) {
    const uint32_t lengths[] = {0, 4, 7, 9, 16};
    const enum ibv_wr_opcode opcodes[] = {IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_CMP_AND_SWP};
    struct ibv_qp *a = make(IBV_QPT_RC, cq, NULL, 4, 1), *b = make(IBV_QPT_RC, cq, NULL, 4, 1);
    for (int i = 0; i < 10; i++) {
        join(a, b);
        uint64_t before = memory[256];
        CHECK(!post(a, IBV_WR_ATOMIC_FETCH_AND_ADD, 1, 8, 0) && !post(a, opcodes[i % 2], 2, lengths[i / 2], 0));
        completes(1, IBV_WC_SUCCESS);
        completes(2, IBV_WC_LOC_LEN_ERR);
        CHECK(memory[256] == before + 1 && attributes(a).qp_state == IBV_QPS_ERR);
        CHECK(!to_state(a, IBV_QPS_RESET) && !to_state(b, IBV_QPS_RESET));
    }
    CHECK(!ibv_destroy_qp(a) && !ibv_destroy_qp(b));
}

static void address_of_another_domain(void) {
    struct ibv_pd *other = ibv_alloc_pd(context);
    struct ibv_ah_attr attr = way();
    struct ibv_ah *ah = ibv_create_ah(other, &attr);
    struct ibv_qp *qp = make(IBV_QPT_UD, cq, NULL, 4, 1);
    struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS};
    CHECK(other && ah && !to_init(qp) && !to_state(qp, IBV_QPS_RTR));
    CHECK(!ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_SQ_PSN));
    struct ibv_sge sge = {(uintptr_t)memory, 8, mr->lkey};
    struct ibv_send_wr wr = {.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
    wr.wr.ud.ah = ah;
    wr.wr.ud.remote_qpn = qp->qp_num;
    wr.wr.ud.remote_qkey = 7;
    CHECK(!ibv_post_send(qp, &wr, &bad));
    completes(1, IBV_WC_LOC_QP_OP_ERR);
    CHECK(attributes(qp).qp_state == IBV_QPS_SQE);
    CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_ah(ah) && !ibv_dealloc_pd(other));
}

/* rxe and mlx5 take an operation that a service lacks, and complete it with an error. Its remote
 * address stands where a datagram has its address handle, and is none. */
static void operations_that_a_service_lacks(void) {
    const enum ibv_wr_opcode opcodes[] = {IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM,
                                          IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_CMP_AND_SWP,
                                          IBV_WR_SEND_WITH_INV};
    for (unsigned i = 0; i < sizeof opcodes / sizeof *opcodes; i++) {
        struct ibv_qp *qp = make(IBV_QPT_UD, cq, NULL, 4, 0);
        struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS};
        CHECK(!to_init(qp) && !to_state(qp, IBV_QPS_RTR));
        CHECK(!ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_SQ_PSN));
        struct ibv_sge sge = {(uintptr_t)memory, 8, mr->lkey};
        struct ibv_send_wr wr = {.wr_id = i, .sg_list = &sge, .num_sge = 1, .opcode = opcodes[i]}, *bad = NULL;
        wr.wr.rdma.remote_addr = 8;
        wr.wr.rdma.rkey = 1;
        CHECK(!ibv_post_send(qp, &wr, &bad));
        completes(i, IBV_WC_LOC_QP_OP_ERR);
        CHECK(attributes(qp).qp_state == IBV_QPS_SQE && !ibv_destroy_qp(qp));
    }
    struct ibv_qp *a = make(IBV_QPT_UC, cq, NULL, 4, 0), *b = make(IBV_QPT_UC, cq, NULL, 4, 0);
    struct ibv_qp_attr rtr = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = b->qp_num, .ah_attr = way()};
    struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS};
    CHECK(!to_init(a) && !to_init(b));
    CHECK(!ibv_modify_qp(a, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN));
    CHECK(!ibv_modify_qp(a, &rts, IBV_QP_STATE | IBV_QP_SQ_PSN));
    CHECK(!post(a, IBV_WR_RDMA_WRITE, 1, 8, IBV_SEND_SIGNALED) && !post(a, IBV_WR_RDMA_READ, 2, 8, 0));
    completes(1, IBV_WC_SUCCESS);
    completes(2, IBV_WC_LOC_QP_OP_ERR);
    /* A number that no operation has. */
    struct ibv_send_wr unknown = {.opcode = (enum ibv_wr_opcode)77}, *bad = NULL;
    CHECK(ibv_post_send(a, &unknown, &bad) == EINVAL && bad == &unknown);
    CHECK(!ibv_destroy_qp(a) && !ibv_destroy_qp(b));
}

/* A program with packed structures has work requests and their lists at odd addresses. */
static void requests_at_odd_addresses(void) {
    struct ibv_qp *a = make(IBV_QPT_RC, cq, NULL, 4, 0), *b = make(IBV_QPT_RC, cq, NULL, 4, 0);
    join(a, b);
    char odd[256];
    struct ibv_sge list[2] = {{(uintptr_t)memory, 8, mr->lkey}, {(uintptr_t)(memory + 1), 8, mr->lkey}};
    struct ibv_sge *sges = (struct ibv_sge *)(odd + 1);
    memcpy(sges, list, sizeof list);
    struct ibv_recv_wr receive = {.wr_id = 1, .sg_list = sges, .num_sge = 2}, *bad_recv;
    CHECK(!ibv_post_recv(b, &receive, &bad_recv));
    struct ibv_recv_wr *packed_recv = (struct ibv_recv_wr *)(odd + 1 + sizeof list);
    receive.wr_id = 2;
    memcpy(packed_recv, &receive, sizeof receive);
    CHECK(!ibv_post_recv(b, packed_recv, &bad_recv));
    struct ibv_send_wr send = {.wr_id = 3, .sg_list = sges, .num_sge = 2, .opcode = IBV_WR_SEND,
                               .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE}, *bad;
    struct ibv_send_wr *packed = (struct ibv_send_wr *)(odd + 1 + sizeof list);
    memcpy(packed, &send, sizeof send);
    CHECK(!ibv_post_send(a, packed, &bad));
    for (int i = 0; i < 2; i++) {
        struct ibv_wc wc = next(cq);
        CHECK(wc.status == IBV_WC_SUCCESS && (wc.wr_id == 1 || wc.wr_id == 3));
        CHECK(wc.wr_id != 1 || wc.byte_len == 16);
    }
    CHECK(!ibv_destroy_qp(a) && !ibv_destroy_qp(b));
}

static void limit_of_a_shared_queue(void) {
    struct ibv_srq_init_attr init = {.attr = {.max_wr = 8, .max_sge = 1, .srq_limit = 5}};
    struct ibv_srq *srq = ibv_create_srq(pd, &init);
    struct ibv_srq_attr attr;
    CHECK(srq && !ibv_query_srq(srq, &attr));
    CHECK(attr.max_wr == 8 && attr.max_sge == 1 && attr.srq_limit == 0);
    struct ibv_qp *a = make(IBV_QPT_RC, cq, NULL, 4, 0), *b = make(IBV_QPT_RC, cq, srq, 4, 0);
    join(a, b);
    for (int i = 0; i < 2; i++) {
        struct ibv_sge sge = {(uintptr_t)memory, 8, mr->lkey};
        struct ibv_recv_wr wr = {.wr_id = i, .sg_list = &sge, .num_sge = 1}, *bad;
        CHECK(!ibv_post_srq_recv(srq, &wr, &bad));
    }
    attr = (struct ibv_srq_attr){.srq_limit = 2};
    CHECK(!ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT));
    CHECK(!ibv_query_srq(srq, &attr) && attr.srq_limit == 2 && attr.max_wr == 8);
    attr = (struct ibv_srq_attr){.srq_limit = 9};
    CHECK(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT) == EINVAL);
    attr = (struct ibv_srq_attr){.max_wr = 1};
    CHECK(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR) == EINVAL);
    CHECK(!post(a, IBV_WR_SEND, 1, 8, 0));
    completes(0, IBV_WC_SUCCESS);
    struct ibv_async_event event;
    CHECK(!ibv_get_async_event(context, &event));
    CHECK(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq == srq);
    ibv_ack_async_event(&event);
    CHECK(!ibv_query_srq(srq, &attr) && attr.srq_limit == 0 && attr.max_wr == 8);
    CHECK(!ibv_destroy_qp(a) && !ibv_destroy_qp(b) && !ibv_destroy_srq(srq));
}

static int bind(struct ibv_qp *qp, struct ibv_mw *mw, uint64_t id, uint32_t key, struct ibv_mr *of, uint64_t length) {
    struct ibv_mw_bind_info info = {
        .mr = of, .addr = (uintptr_t)memory, .length = length, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE};
    if (mw->type == IBV_MW_TYPE_1) {
        struct ibv_mw_bind bind = {.wr_id = id, .send_flags = IBV_SEND_SIGNALED, .bind_info = info};
        return ibv_bind_mw(qp, mw, &bind);
    }
    struct ibv_send_wr wr = {.wr_id = id, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED}, *bad;
    wr.bind_mw.mw = mw;
    wr.bind_mw.rkey = key;
    wr.bind_mw.bind_info = info;
    int result = ibv_post_send(qp, &wr, &bad);
    mw->rkey = (mw->rkey & ~0xffu) | (key & 0xff);
    return result;
}

/* A window can be bound after a bind was refused, and after one was flushed. */
static void windows(enum ibv_mw_type type) {
    struct ibv_mr *bindable = ibv_reg_mr(pd, memory, 64, ALL_ACCESS | IBV_ACCESS_MW_BIND);
    struct ibv_qp *a = make(IBV_QPT_RC, cq, NULL, 4, 0), *b = make(IBV_QPT_RC, cq, NULL, 4, 0);
    struct ibv_mw *mw = ibv_alloc_mw(pd, type);
    CHECK(bindable && mw);
    join(a, b);
    uint32_t first = mw->rkey;
    CHECK(!bind(b, mw, 1, first + 1, bindable, 65) && !bind(b, mw, 2, first + 2, bindable, 64));
    completes(1, IBV_WC_MW_BIND_ERR);
    completes(2, IBV_WC_WR_FLUSH_ERR);
    CHECK(!to_state(a, IBV_QPS_RESET) && !to_state(b, IBV_QPS_RESET));
    join(a, b);
    /* Of the key that is asked for only the low eight bits count. */
    CHECK(!bind(b, mw, 3, 0xabcdef00 | ((first + 7) & 0xff), bindable, 64));
    completes(3, IBV_WC_SUCCESS);
    uint32_t key = type == IBV_MW_TYPE_1 ? mw->rkey : (first & ~0xffu) | ((first + 7) & 0xff);
    struct ibv_sge sge = {(uintptr_t)(memory + 128), 8, mr->lkey};
    struct ibv_send_wr wr = {
        .wr_id = 4, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED}, *bad;
    wr.wr.rdma.remote_addr = (uintptr_t)memory;
    wr.wr.rdma.rkey = key;
    memory[0] = 0;
    memory[128] = 0x1234;
    CHECK(!ibv_post_send(a, &wr, &bad));
    completes(4, IBV_WC_SUCCESS);
    CHECK(memory[0] == 0x1234);
    CHECK(!ibv_dealloc_mw(mw) && !ibv_destroy_qp(a) && !ibv_destroy_qp(b) && !ibv_dereg_mr(bindable));
}

static void settle(struct ibv_qp *qp, int posted) {
    /* All that was posted is done when a completion queue of another queue pair says so; here,
     * when PSNs are used up. */
    while ((attributes(qp).sq_psn - 9) != (uint32_t)posted)
        ;
}

/* What stands before the first bad request of a list is posted; the bad one is named, and what
 * follows it is not looked at. */
static void first_bad_request_of_a_list(void) {
    /* Rule: V-01.1. */
    struct ibv_qp *a = make(IBV_QPT_RC, cq, NULL, 8, 0), *b = make(IBV_QPT_RC, cq, NULL, 8, 0);
    join(a, b);
    struct ibv_sge sge = {(uintptr_t)memory, 8, mr->lkey};
    struct ibv_send_wr wrs[3] = {{0}}, *bad = NULL;
    for (int i = 0; i < 3; i++) {
        wrs[i] = (struct ibv_send_wr){.wr_id = 20 + i, .next = i < 2 ? &wrs[i + 1] : NULL, .sg_list = &sge, .num_sge = 1,
                                      .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED};
        wrs[i].wr.rdma.remote_addr = (uintptr_t)(memory + 256);
        wrs[i].wr.rdma.rkey = mr->rkey;
    }
    wrs[1].num_sge = -1;
    CHECK(ibv_post_send(a, wrs, &bad) == EINVAL && bad == &wrs[1]);
    completes(20, IBV_WC_SUCCESS);
    /* The next completion is that of the next request: the third one of the list was not posted. */
    CHECK(!post(a, IBV_WR_RDMA_WRITE, 30, 8, IBV_SEND_SIGNALED));
    completes(30, IBV_WC_SUCCESS);
    CHECK(!ibv_destroy_qp(a) && !ibv_destroy_qp(b));
}

/* A slot of the send queue is free when its completion was polled, or that of a later request. */
static void slots_of_the_send_queue(void) {
    enum { SLOTS = 8 };
    struct ibv_wc wc[2 * SLOTS];
    struct ibv_qp *a = make(IBV_QPT_RC, cq, NULL, SLOTS, 0), *b = make(IBV_QPT_RC, cq, NULL, SLOTS, 0);
    join(a, b);
    int posted = 0;
    for (; posted < SLOTS; posted++) {
        CHECK(!post(a, IBV_WR_RDMA_WRITE, posted, 8, IBV_SEND_SIGNALED));
        settle(a, posted + 1);
    }
    CHECK(post(a, IBV_WR_RDMA_WRITE, 99, 8, IBV_SEND_SIGNALED) == ENOMEM);
    completes(0, IBV_WC_SUCCESS);
    CHECK(!post(a, IBV_WR_RDMA_WRITE, 8, 8, 0));
    CHECK(post(a, IBV_WR_RDMA_WRITE, 99, 8, IBV_SEND_SIGNALED) == ENOMEM);
    for (int id = 1; id < SLOTS; id++)
        completes(id, IBV_WC_SUCCESS);
    /* What is refused takes no slot. */
    struct ibv_send_wr refused = {.num_sge = -1, .opcode = IBV_WR_SEND}, *bad = NULL;
    struct ibv_recv_wr refused_recv = {.num_sge = -1}, *bad_recv = NULL;
    CHECK(ibv_post_send(a, &refused, &bad) == EINVAL && bad == &refused);
    CHECK(ibv_post_recv(a, &refused_recv, &bad_recv) == EINVAL && bad_recv == &refused_recv);
    /* One slot is still taken by the unsignaled request. */
    for (int id = 9; id < 8 + SLOTS; id++)
        CHECK(!post(a, IBV_WR_RDMA_WRITE, id, 8, id == 9 ? IBV_SEND_SIGNALED : 0));
    CHECK(post(a, IBV_WR_RDMA_WRITE, 99, 8, IBV_SEND_SIGNALED) == ENOMEM);
    completes(9, IBV_WC_SUCCESS);
    CHECK(!post(a, IBV_WR_RDMA_WRITE, 16, 8, 0) && !post(a, IBV_WR_RDMA_WRITE, 17, 8, 0));
    /* Never signaled, never freed: only a reset helps. */
    CHECK(post(a, IBV_WR_RDMA_WRITE, 99, 8, IBV_SEND_SIGNALED) == ENOMEM);
    CHECK(ibv_poll_cq(cq, 1, wc) == 0);
    CHECK(!to_state(a, IBV_QPS_RESET) && !to_state(b, IBV_QPS_RESET));
    join(a, b);
    /* What is flushed is freed when its completion is polled, too. */
    CHECK(!to_state(a, IBV_QPS_ERR));
    for (int id = 0; id < SLOTS; id++)
        CHECK(!post(a, IBV_WR_RDMA_WRITE, id, 8, 0));
    CHECK(post(a, IBV_WR_RDMA_WRITE, 99, 8, 0) == ENOMEM);
    CHECK(ibv_poll_cq(cq, 2 * SLOTS, wc) == SLOTS && wc[SLOTS - 1].status == IBV_WC_WR_FLUSH_ERR);
    CHECK(!post(a, IBV_WR_RDMA_WRITE, 3, 8, 0));
    /* A completion of a queue pair that is gone frees nothing and harms nothing. */
    CHECK(!ibv_destroy_qp(a) && !ibv_destroy_qp(b));
    while (ibv_poll_cq(cq, 1, wc) > 0)
        ;
}

int main(void) {
    CHECK((context = open_device(0)) && (pd = ibv_alloc_pd(context)));
    CHECK((cq = ibv_create_cq(context, 64, NULL, NULL, 0)));
    CHECK((mr = ibv_reg_mr(pd, memory, sizeof memory, ALL_ACCESS)) && !ibv_query_gid(context, 1, 0, &gid));
    extended_connections();
    edge_values();
    atomics();
    address_of_another_domain();
    operations_that_a_service_lacks();
    requests_at_odd_addresses();
    limit_of_a_shared_queue();
    windows(IBV_MW_TYPE_1);
    windows(IBV_MW_TYPE_2);
    first_bad_request_of_a_list();
    slots_of_the_send_queue();
    CHECK(!ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
    puts("fine");
    return 0;
}
