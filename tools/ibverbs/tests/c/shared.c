/* Domains of extended reliable connections that are shared through files, and queue pairs that
 * are opened twice, by two contexts of one soft NIC; a third is of another. It says what is
 * wrong, or that all is fine. */
#define _GNU_SOURCE
#include "verbs.h"

#include <fcntl.h>
#include <poll.h>

static struct ibv_context *one, *two, *other;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static char memory[2 * SIZE];

static struct ibv_xrcd *domain(struct ibv_context *context, int fd, int oflags)
{
    struct ibv_xrcd_init_attr attr = {
        .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = fd, .oflags = oflags,
    };
    errno = 0;
    return ibv_open_xrcd(context, &attr);
}

static int temporary(char *path)
{
    strcpy(path, "/tmp/roce-shared-XXXXXX");
    int fd = mkstemp(path);
    CHECK(fd >= 0);
    return fd;
}

static struct ibv_srq *shared_queue(struct ibv_xrcd *xrcd, uint32_t *number)
{
    struct ibv_srq_init_attr_ex init = {
        .attr = { .max_wr = 4, .max_sge = 1 }, .srq_type = IBV_SRQT_XRC, .pd = pd, .xrcd = xrcd, .cq = cq,
        .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
    };
    struct ibv_srq *srq = ibv_create_srq_ex(one, &init);
    CHECK(srq && !ibv_get_srq_num(srq, number));
    return srq;
}

static struct ibv_qp *receiver(struct ibv_xrcd *xrcd)
{
    struct ibv_qp_init_attr_ex init = { .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = xrcd };
    struct ibv_qp *qp = ibv_create_qp_ex(one, &init);
    CHECK(qp);
    return qp;
}

static struct ibv_qp *sender(void)
{
    struct ibv_qp_init_attr_ex init = {
        .qp_type = IBV_QPT_XRC_SEND, .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = pd, .send_cq = cq, .sq_sig_all = 1,
        .cap = { .max_send_wr = 4, .max_send_sge = 1 },
    };
    struct ibv_qp *qp = ibv_create_qp_ex(one, &init);
    CHECK(qp);
    return qp;
}

static void ready_to_receive(struct ibv_qp *qp, struct ibv_qp *peer)
{
    int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    attr = (struct ibv_qp_attr) { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qp_num,
        .max_dest_rd_atomic = 1, .min_rnr_timer = 1,
        .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .hop_limit = 1 } } };
    CHECK(!ibv_query_gid(one, 1, 0, &attr.ah_attr.grh.dgid));
    if (qp->qp_type == IBV_QPT_XRC_RECV)
        mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    CHECK(!ibv_modify_qp(qp, &attr, mask));
}

static void ready_to_send(struct ibv_qp *qp)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1 };
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
            IBV_QP_MAX_QP_RD_ATOMIC));
}

static enum ibv_qp_state state(struct ibv_qp *qp)
{
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    CHECK(!ibv_query_qp(qp, &attr, IBV_QP_STATE, &init));
    return attr.qp_state;
}

static enum ibv_wc_status sent(struct ibv_qp *qp, uint32_t srqn, uint64_t id)
{
    struct ibv_sge sge = { (uintptr_t)memory, SIZE, mr->lkey };
    struct ibv_send_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
        .qp_type.xrc.remote_srqn = srqn }, *bad;
    CHECK(!ibv_post_send(qp, &wr, &bad));
    struct ibv_wc wc = next(cq);
    CHECK(wc.wr_id == id);
    return wc.status;
}

/* A message goes to this queue of the domain, and its receive completes, before or after the
 * send. */
static void arrives(struct ibv_qp *qp, struct ibv_srq *srq, uint32_t srqn)
{
    struct ibv_sge sge = { (uintptr_t)memory + SIZE, SIZE, mr->lkey };
    struct ibv_recv_wr receive = { .wr_id = 1, .sg_list = &sge, .num_sge = 1 }, *bad_receive;
    CHECK(!ibv_post_srq_recv(srq, &receive, &bad_receive));
    struct ibv_send_wr send = { .wr_id = 2, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
        .qp_type.xrc.remote_srqn = srqn }, *bad;
    sge.addr = (uintptr_t)memory;
    memory[0]++;
    CHECK(!ibv_post_send(qp, &send, &bad));
    struct ibv_wc first = next(cq), second = next(cq);
    CHECK(first.status == IBV_WC_SUCCESS && second.status == IBV_WC_SUCCESS && first.wr_id + second.wr_id == 3);
    CHECK(memory[SIZE] == memory[0]);
}

static void flags(void)
{
    char path[64], elsewhere[64];
    int fd = temporary(path), again = open(path, O_RDONLY), else_fd = temporary(elsewhere);
    CHECK(again >= 0);
    CHECK(!domain(one, fd, 0) && errno == ENOENT);
    CHECK(!domain(one, 9999, O_CREAT) && errno == EBADF);
    CHECK(!domain(one, -2, O_CREAT) && errno == EBADF);
    struct ibv_xrcd *first = domain(one, fd, O_CREAT | O_EXCL);
    CHECK(first && !domain(one, fd, O_CREAT | O_EXCL) && errno == EEXIST);
    CHECK(!domain(two, again, O_CREAT | O_EXCL) && errno == EEXIST);
    /* Other files and other devices have domains of their own. */
    CHECK(!domain(one, else_fd, 0) && errno == ENOENT);
    CHECK(!domain(other, fd, 0) && errno == ENOENT);
    struct ibv_xrcd *elsewhere_first = domain(one, else_fd, O_CREAT | O_EXCL), *others = domain(other, fd, O_CREAT | O_EXCL);
    CHECK(elsewhere_first && others);
    CHECK(!ibv_close_xrcd(elsewhere_first) && !ibv_close_xrcd(others));
    /* It is there until the last one closes it, even if no descriptor is open, and then it may
     * be made anew. */
    struct ibv_xrcd *second = domain(two, again, 0), *third = domain(one, again, O_CREAT);
    CHECK(second && third && !close(fd) && !close(again));
    CHECK(!ibv_close_xrcd(first) && !ibv_close_xrcd(third));
    CHECK((fd = open(path, O_RDONLY)) >= 0 && !domain(one, fd, O_CREAT | O_EXCL) && errno == EEXIST);
    CHECK(!ibv_close_xrcd(second));
    CHECK(!domain(one, fd, 0) && errno == ENOENT);
    CHECK((first = domain(one, fd, O_CREAT | O_EXCL)) && !ibv_close_xrcd(first));
    CHECK(!close(fd) && !close(else_fd) && !unlink(path) && !unlink(elsewhere));
    /* A domain does not keep a file open: who reads from a pipe sees its end. */
    int ends[2];
    char byte;
    CHECK(!pipe2(ends, O_NONBLOCK) && (first = domain(one, ends[1], O_CREAT)) && !close(ends[1]));
    CHECK(read(ends[0], &byte, 1) == 0);
    CHECK(!ibv_close_xrcd(first) && !close(ends[0]));
}

/* What is in one domain is reached through all that stand for it, and through no other. */
static void domains(void)
{
    char path[64];
    int fd = temporary(path);
    struct ibv_xrcd *mine = domain(one, fd, O_CREAT), *same = domain(two, fd, 0);
    struct ibv_xrcd *alone = domain(one, -1, O_CREAT), *lonely = domain(one, -1, O_CREAT);
    CHECK(mine && same && alone && lonely);
    struct ibv_xrcd *of[] = { mine, same, alone, lonely };
    uint32_t number;
    struct ibv_srq *srq = shared_queue(mine, &number);
    for (int i = 0; i < 4; i++) {
        struct ibv_qp *to = receiver(of[i]), *from = sender();
        ready_to_receive(to, from);
        ready_to_receive(from, to);
        ready_to_send(from);
        if (i < 2)
            arrives(from, srq, number);
        else
            CHECK(sent(from, number, 7) == IBV_WC_REM_INV_REQ_ERR);
        CHECK(!ibv_destroy_qp(from) && !ibv_destroy_qp(to));
    }
    CHECK(!ibv_close_xrcd(alone) && !ibv_close_xrcd(lonely) && !ibv_close_xrcd(mine));
    CHECK(ibv_close_xrcd(same) == EBUSY && !ibv_destroy_srq(srq) && !ibv_close_xrcd(same));
    CHECK(!close(fd) && !unlink(path));
}

static struct ibv_qp *opened(struct ibv_context *context, struct ibv_xrcd *xrcd, uint32_t number, enum ibv_qp_type type,
        uint32_t mask)
{
    struct ibv_qp_open_attr attr = { .comp_mask = mask, .qp_num = number, .xrcd = xrcd, .qp_context = memory, .qp_type = type };
    errno = 0;
    return ibv_open_qp(context, &attr);
}

/* Whether something was told; what is awaited may take as long as a test may. */
static int told(struct ibv_context *context, int timeout_ms)
{
    struct pollfd descriptor = { .fd = context->async_fd, .events = POLLIN };
    return poll(&descriptor, 1, timeout_ms);
}

static void established(struct ibv_context *context, struct ibv_qp *qp)
{
    struct ibv_async_event event;
    CHECK(told(context, 20000) && !ibv_get_async_event(context, &event));
    CHECK(event.event_type == IBV_EVENT_COMM_EST && event.element.qp == qp);
    ibv_ack_async_event(&event);
}

static void queue_pairs(void)
{
    const uint32_t all = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
    char path[64];
    int fd = temporary(path);
    struct ibv_xrcd *mine = domain(one, fd, O_CREAT), *same = domain(two, fd, 0), *alone = domain(one, -1, O_CREAT);
    struct ibv_xrcd *far = domain(other, fd, O_CREAT);
    CHECK(mine && same && alone && far);
    uint32_t srqn;
    struct ibv_srq *srq = shared_queue(mine, &srqn);
    struct ibv_qp *first = receiver(mine), *from = sender();
    uint32_t number = first->qp_num;
    /* Everything that is named must be right. */
    CHECK(!opened(two, same, number + 1, IBV_QPT_XRC_RECV, all) && errno == EINVAL);
    CHECK(!opened(two, same, from->qp_num, IBV_QPT_XRC_RECV, all) && errno == EINVAL);
    CHECK(!opened(two, same, number, IBV_QPT_XRC_SEND, all) && errno == EINVAL);
    CHECK(!opened(one, alone, number, IBV_QPT_XRC_RECV, all) && errno == EINVAL);
    CHECK(!opened(other, far, number, IBV_QPT_XRC_RECV, all) && errno == EINVAL);
    CHECK(!opened(other, same, number, IBV_QPT_XRC_RECV, all) && errno == EINVAL);
    CHECK(!opened(two, same, number, IBV_QPT_XRC_RECV, all & ~IBV_QP_OPEN_ATTR_NUM) && errno == EINVAL);
    CHECK(!opened(two, same, number, IBV_QPT_XRC_RECV, all & ~IBV_QP_OPEN_ATTR_XRCD) && errno == EINVAL);
    CHECK(!opened(two, same, number, IBV_QPT_XRC_RECV, all & ~IBV_QP_OPEN_ATTR_TYPE) && errno == EINVAL);
    CHECK(!opened(two, same, number, IBV_QPT_XRC_RECV, all | IBV_QP_OPEN_ATTR_RESERVED) && errno == EOPNOTSUPP);
    struct ibv_qp *second = opened(two, same, number, IBV_QPT_XRC_RECV, all | IBV_QP_OPEN_ATTR_CONTEXT);
    CHECK(second && second != first && second->qp_num == number && second->qp_type == IBV_QPT_XRC_RECV);
    CHECK(second->context == two && second->qp_context == memory && second->state == IBV_QPS_RESET);
    /* What one does, all see. */
    ready_to_receive(second, from);
    CHECK(state(first) == IBV_QPS_RTR && state(second) == IBV_QPS_RTR);
    struct ibv_qp *third = opened(one, mine, number, IBV_QPT_XRC_RECV, all);
    CHECK(third && third->state == IBV_QPS_RTR && third->qp_context == NULL);
    ready_to_receive(from, first);
    ready_to_send(from);
    arrives(from, srq, srqn);
    /* Each is told what happened; what one was not told is forgotten with it. */
    CHECK(!ibv_destroy_qp(third));
    established(one, first);
    established(two, second);
    CHECK(!told(one, 0) && !told(two, 0));
    /* It is there until the last one goes, whichever context made it, and keeps its domain for
     * as long. */
    CHECK(!ibv_destroy_qp(first));
    arrives(from, srq, srqn);
    CHECK(state(second) == IBV_QPS_RTR && !ibv_destroy_srq(srq));
    CHECK(!ibv_close_xrcd(mine) && ibv_close_xrcd(same) == EBUSY);
    CHECK((third = opened(one, same, number, IBV_QPT_XRC_RECV, all)));
    CHECK(!ibv_destroy_qp(second) && !ibv_destroy_qp(third));
    CHECK(!opened(two, same, number, IBV_QPT_XRC_RECV, all) && errno == EINVAL);
    CHECK(!ibv_close_xrcd(same) && !ibv_close_xrcd(alone) && !ibv_close_xrcd(far) && !ibv_destroy_qp(from));
    CHECK(!close(fd) && !unlink(path));
}

/* A context is closed with a queue pair left open that another context can open: that one has it
 * until it destroys it, and finds it no more if it had not opened it. */
static void left_open(void)
{
    const uint32_t all = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
    char path[64];
    int fd = temporary(path);
    for (int is_open = 0; is_open < 2; is_open++) {
        struct ibv_context *third = open_device(0);
        CHECK(third);
        struct ibv_xrcd *mine = domain(third, fd, O_CREAT), *same = domain(two, fd, 0);
        CHECK(mine && same);
        struct ibv_qp_init_attr_ex init = { .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = mine };
        struct ibv_qp *left = ibv_create_qp_ex(third, &init), *kept = NULL;
        CHECK(left);
        uint32_t number = left->qp_num;
        if (is_open)
            CHECK((kept = opened(two, same, number, IBV_QPT_XRC_RECV, all)));
        CHECK(!ibv_close_device(third));
        if (is_open)
            CHECK(state(kept) == IBV_QPS_RESET && ibv_close_xrcd(same) == EBUSY && !ibv_destroy_qp(kept));
        CHECK(!opened(two, same, number, IBV_QPT_XRC_RECV, all) && errno == EINVAL);
        CHECK(!ibv_close_xrcd(same));
    }
    CHECK(!close(fd) && !unlink(path));
}

/* Completion events are not held back: the device says so, and refuses to. */
static void moderation(void)
{
    struct ibv_device_attr_ex device;
    struct ibv_modify_cq_attr attr = { .attr_mask = IBV_CQ_ATTR_MODERATE, .moderate = { .cq_count = 8, .cq_period = 50 } };
    CHECK(!ibv_query_device_ex(one, NULL, &device));
    CHECK(device.cq_mod_caps.max_cq_count == 0 && device.cq_mod_caps.max_cq_period == 0);
    CHECK(ibv_modify_cq(cq, &attr) == EOPNOTSUPP);
}

int main(void)
{
    CHECK((one = open_device(0)) && (two = open_device(0)) && (other = open_device(1)));
    CHECK((pd = ibv_alloc_pd(one)) && (cq = ibv_create_cq(one, 16, NULL, NULL, 0)));
    CHECK((mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE)));
    int before = descriptors();
    flags();
    domains();
    queue_pairs();
    left_open();
    moderation();
    CHECK(descriptors() == before);
    CHECK(!ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd));
    CHECK(!ibv_close_device(one) && !ibv_close_device(two) && !ibv_close_device(other));
    puts("fine");
    return 0;
}
