/* What rdma-core's own tests leave out of the extended verbs, on one soft NIC: two connected
 * queue pairs of one program. It says what is wrong, or that all is fine. */
#include "verbs.h"

#include <time.h>

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq_ex *cq;
static struct ibv_mr *mr;
static uint64_t memory[512];
static uint64_t begun;

static struct ibv_qp_ex *make(uint64_t operations)
{
    struct ibv_qp_init_attr_ex init = {
        .send_cq = ibv_cq_ex_to_cq(cq), .recv_cq = ibv_cq_ex_to_cq(cq), .pd = pd, .qp_type = IBV_QPT_RC,
        .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 2, .max_recv_sge = 1, .max_inline_data = 16 },
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = operations,
    };
    struct ibv_qp *qp = ibv_create_qp_ex(context, &init);
    CHECK(qp);
    return ibv_qp_to_qp_ex(qp);
}

static void connect_to(struct ibv_qp *qp, struct ibv_qp *peer)
{
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1,
        .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    attr = (struct ibv_qp_attr) { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp_num,
        .max_dest_rd_atomic = 4, .min_rnr_timer = 1, .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .hop_limit = 1 } } };
    CHECK(!ibv_query_gid(context, 1, 0, &attr.ah_attr.grh.dgid));
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
            IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    attr = (struct ibv_qp_attr) { .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 4 };
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
            IBV_QP_MAX_QP_RD_ATOMIC));
}

static uint64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return time.tv_sec * 1000000000ull + time.tv_nsec;
}

/* Waits for a completion, looks at when it came, and leaves it open to be read. */
static void expect(uint64_t id, enum ibv_wc_opcode opcode)
{
    static uint64_t before;
    struct ibv_poll_cq_attr attr = { 0 };
    int result;
    while ((result = ibv_start_poll(cq, &attr)) == ENOENT)
        ;
    CHECK(result == 0);
    if (cq->status != IBV_WC_SUCCESS)
        fprintf(stderr, "%s\n", ibv_wc_status_str(cq->status));
    CHECK(cq->status == IBV_WC_SUCCESS && cq->wr_id == id && ibv_wc_read_opcode(cq) == opcode);
    uint64_t time = ibv_wc_read_completion_ts(cq), wall = ibv_wc_read_completion_wallclock_ns(cq);
    CHECK(time >= before && begun <= wall && wall <= now_ns());
    before = time;
    struct ibv_values_ex values = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK };
    CHECK(!ibv_query_rt_values_ex(context, &values));
    CHECK((uint64_t)values.raw_clock.tv_sec * 1000000000 + values.raw_clock.tv_nsec >= time);
}

static void completes(uint64_t id, enum ibv_wc_opcode opcode)
{
    expect(id, opcode);
    ibv_end_poll(cq);
}

static void begin(struct ibv_qp_ex *qp, uint64_t id)
{
    ibv_wr_start(qp);
    qp->wr_id = id;
    qp->wr_flags = IBV_SEND_SIGNALED;
}

static void receive(struct ibv_qp_ex *qp, uint64_t id, uint64_t *to)
{
    struct ibv_sge sge = { .addr = (uintptr_t)to, .length = 64, .lkey = mr->lkey };
    struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad;
    CHECK(!ibv_post_recv(&qp->qp_base, &wr, &bad));
}

static void windows(struct ibv_qp_ex *a, struct ibv_qp_ex *b)
{
    struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
    struct ibv_mw_bind_info info = { .mr = mr, .addr = (uintptr_t)memory, .length = 64,
        .mw_access_flags = IBV_ACCESS_REMOTE_WRITE };
    struct ibv_poll_cq_attr attr = { 0 };
    CHECK(mw);
    /* The new key is set before it is bound, as the manual has it. */
    mw->rkey = ibv_inc_rkey(mw->rkey);
    begin(b, 1);
    ibv_wr_bind_mw(b, mw, mw->rkey, &info);
    CHECK(!ibv_wr_complete(b));
    completes(1, IBV_WC_BIND_MW);
    begin(a, 2);
    ibv_wr_rdma_write(a, mw->rkey, (uintptr_t)memory);
    ibv_wr_set_inline_data(a, "window", 6);
    CHECK(!ibv_wr_complete(a));
    completes(2, IBV_WC_RDMA_WRITE);
    CHECK(!memcmp(memory, "window", 6));
    /* Its user gives it back. */
    receive(b, 3, memory + 8);
    begin(a, 4);
    ibv_wr_send_inv(a, mw->rkey);
    ibv_wr_set_inline_data(a, "take", 4);
    CHECK(!ibv_wr_complete(a));
    int seen = 0;
    while (seen < 2) {
        if (ibv_start_poll(cq, &attr) == ENOENT)
            continue;
        CHECK(cq->status == IBV_WC_SUCCESS);
        if (cq->wr_id == 3) {
            CHECK(ibv_wc_read_wc_flags(cq) & IBV_WC_WITH_INV);
            CHECK(ibv_wc_read_invalidated_rkey(cq) == mw->rkey && ibv_wc_read_byte_len(cq) == 4);
        }
        seen++;
        ibv_end_poll(cq);
    }
    /* And it is bound again, twice in one go, with a local invalidation in between. */
    uint32_t key = ibv_inc_rkey(mw->rkey), last = ibv_inc_rkey(key);
    begin(b, 5);
    ibv_wr_bind_mw(b, mw, key, &info);
    b->wr_id = 6;
    ibv_wr_local_inv(b, key);
    b->wr_id = 7;
    ibv_wr_bind_mw(b, mw, last, &info);
    CHECK(!ibv_wr_complete(b));
    completes(5, IBV_WC_BIND_MW);
    completes(6, IBV_WC_LOCAL_INV);
    completes(7, IBV_WC_BIND_MW);
    mw->rkey = last;
    CHECK(!ibv_dealloc_mw(mw));
}

static void all_or_nothing(struct ibv_qp_ex *a, struct ibv_qp_ex *b)
{
    struct ibv_poll_cq_attr attr = { 0 };
    /* More than fit, too long, no data before a request, and what the program itself takes back. */
    begin(a, 1);
    for (int i = 0; i < 5; i++)
        ibv_wr_send(a);
    CHECK(ibv_wr_complete(a) == ENOMEM);
    begin(a, 1);
    ibv_wr_send(a);
    ibv_wr_send(a);
    ibv_wr_set_inline_data(a, memory, 17);
    CHECK(ibv_wr_complete(a) == EINVAL);
    ibv_wr_start(a);
    ibv_wr_set_sge(a, mr->lkey, (uintptr_t)memory, 8);
    CHECK(ibv_wr_complete(a) == EINVAL);
    begin(a, 1);
    ibv_wr_send(a);
    ibv_wr_abort(a);
    CHECK(ibv_start_poll(cq, &attr) == ENOENT);
    /* Pieces become one message. */
    struct ibv_data_buf pieces[] = { { "one", 3 }, { "", 0 }, { " message", 8 } };
    receive(b, 2, memory + 16);
    begin(a, 3);
    a->wr_flags = 0;
    ibv_wr_send_imm(a, htobe32(77));
    ibv_wr_set_inline_data_list(a, 3, pieces);
    CHECK(!ibv_wr_complete(a));
    expect(2, IBV_WC_RECV);
    CHECK(ibv_wc_read_byte_len(cq) == 11 && be32toh(ibv_wc_read_imm_data(cq)) == 77);
    CHECK(ibv_wc_read_qp_num(cq) == b->qp_base.qp_num && ibv_next_poll(cq) == ENOENT);
    ibv_end_poll(cq);
    CHECK(!memcmp(memory + 16, "one message", 11));
}

static void shared(void)
{
    struct ibv_context *again = ibv_import_device(dup(context->cmd_fd));
    CHECK(again && again != context);
    struct ibv_pd *same = ibv_import_pd(again, pd->handle);
    CHECK(same);
    struct ibv_mr *region = ibv_import_mr(same, mr->handle);
    CHECK(region && region->lkey == mr->lkey && region->length == mr->length);
    CHECK(!ibv_import_pd(again, 1u << 30) && errno == ENOENT);
    ibv_unimport_mr(region);
    ibv_unimport_pd(same);
    CHECK(!ibv_close_device(again));
    int other[2];
    CHECK(!pipe(other) && !ibv_import_device(other[0]) && errno == EOPNOTSUPP);
    /* What was never imported is not to be found once it is gone. */
    struct ibv_pd *gone = ibv_alloc_pd(context);
    uint32_t handle = gone->handle;
    CHECK(!ibv_dealloc_pd(gone) && !ibv_import_pd(context, handle));
}

static void advice(void)
{
    struct ibv_sge sge = { .addr = (uintptr_t)memory, .length = 64, .lkey = mr->lkey };
    CHECK(!ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_FLAG_FLUSH, &sge, 1));
    sge.lkey++;
    CHECK(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1) == ENOENT);
    struct ibv_mr *all = ibv_reg_mr(pd, NULL, SIZE_MAX, IBV_ACCESS_ON_DEMAND | IBV_ACCESS_LOCAL_WRITE);
    CHECK(all);
    sge = (struct ibv_sge) { .addr = 4096, .length = 64, .lkey = all->lkey };
    CHECK(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_FLAG_FLUSH, &sge, 1) == EFAULT);
    CHECK(!ibv_dereg_mr(all));
    CHECK(!ibv_reg_mr(pd, (void *)4096, 64, IBV_ACCESS_LOCAL_WRITE) && errno == EFAULT);
}

static void refused(void)
{
    struct ibv_cq_init_attr_ex attr = { .cqe = 4, .wc_flags = IBV_WC_EX_WITH_CVLAN };
    CHECK(!ibv_create_cq_ex(context, &attr) && errno == EOPNOTSUPP);
    struct ibv_qp_init_attr_ex init = {
        .send_cq = ibv_cq_ex_to_cq(cq), .recv_cq = ibv_cq_ex_to_cq(cq), .pd = pd, .qp_type = IBV_QPT_UD,
        .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 2, .max_recv_sge = 1 },
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = IBV_QP_EX_WITH_RDMA_READ,
    };
    CHECK(!ibv_create_qp_ex(context, &init) && errno == EOPNOTSUPP);
    struct ibv_qp_init_attr plain = { .send_cq = init.send_cq, .recv_cq = init.recv_cq, .cap = init.cap, .qp_type = IBV_QPT_RC };
    struct ibv_qp *qp = ibv_create_qp(pd, &plain);
    CHECK(qp && !ibv_qp_to_qp_ex(qp));
    CHECK(!ibv_destroy_qp(qp));
    plain.qp_type = IBV_QPT_RAW_PACKET;
    CHECK(!ibv_create_qp(pd, &plain) && errno == EOPNOTSUPP);
}

int main(void)
{
    begun = now_ns();
    struct ibv_device **list = ibv_get_device_list(NULL);
    CHECK(list && list[0]);
    context = ibv_open_device(list[0]);
    CHECK(context);
    ibv_free_device_list(list);
    pd = ibv_alloc_pd(context);
    struct ibv_cq_init_attr_ex attr = { .cqe = 64, .wc_flags = IBV_WC_STANDARD_FLAGS |
        IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK };
    cq = ibv_create_cq_ex(context, &attr);
    mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
            IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND | IBV_ACCESS_RELAXED_ORDERING);
    CHECK(pd && cq && mr);
    uint64_t operations = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_SEND_WITH_INV |
        IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV;
    struct ibv_qp_ex *a = make(operations), *b = make(operations);
    CHECK(a && b);
    connect_to(&a->qp_base, &b->qp_base);
    connect_to(&b->qp_base, &a->qp_base);
    windows(a, b);
    all_or_nothing(a, b);
    shared();
    advice();
    refused();
    CHECK(!ibv_destroy_qp(&a->qp_base) && !ibv_destroy_qp(&b->qp_base));
    CHECK(!ibv_dereg_mr(mr) && !ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) && !ibv_dealloc_pd(pd));
    CHECK(!ibv_close_device(context));
    puts("fine");
    return 0;
}
