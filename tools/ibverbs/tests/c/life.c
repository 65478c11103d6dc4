/* The usual life of a verbs program, each step of which may fail: what was made is then
 * destroyed, and the program says which call failed with which error. It leaves no descriptors
 * behind in any case. tools/ibverbs/inject lets system calls fail under it. Exit: 0 all went
 * well, 3 a call failed as it should. */
#define _GNU_SOURCE
#include "verbs.h"

#include <poll.h>

static struct ibv_device **list;
static struct {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_mr *mr;
    struct ibv_srq *srq;
    struct ibv_qp *qp;
    char memory[4096];
} ends[2];
static const char *failed;
static int failure;

/* Notes the first call that fails; errno must tell why. */
static int fine(int success, const char *what) {
    if (!success && !failed) failed = what, failure = errno;
    return success;
}
#define TRY(call) (errno = 0, fine(!!(call), #call))

/* How many of the first descriptors are open, by a call that is not made to fail. */
static int open_descriptors(void) {
    enum { MOST = 256 };
    struct pollfd all[MOST];
    int count = 0;
    for (int i = 0; i < MOST; i++) all[i] = (struct pollfd){.fd = i};
    CHECK(poll(all, MOST, 0) >= 0);
    for (int i = 0; i < MOST; i++) count += !(all[i].revents & POLLNVAL);
    return count;
}

static int make(int i) {
    struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC,
                                    .sq_sig_all = 1,
                                    .cap = {.max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1}};
    struct ibv_srq_init_attr shared = {.attr = {.max_wr = 8, .max_sge = 1}};
    if (!TRY((ends[i].context = ibv_open_device(list[i]))) || !TRY((ends[i].pd = ibv_alloc_pd(ends[i].context))) ||
        !TRY((ends[i].channel = ibv_create_comp_channel(ends[i].context))) ||
        !TRY((ends[i].cq = ibv_create_cq(ends[i].context, 16, NULL, ends[i].channel, 0))) ||
        !TRY((ends[i].mr = ibv_reg_mr(ends[i].pd, ends[i].memory, sizeof ends[i].memory, IBV_ACCESS_LOCAL_WRITE))) ||
        !TRY((ends[i].srq = ibv_create_srq(ends[i].pd, &shared))))
        return 0;
    init.send_cq = init.recv_cq = ends[i].cq;
    return TRY((ends[i].qp = ibv_create_qp(ends[i].pd, &init)));
}

static void talk(void) {
    struct end end[2] = {{.qp = ends[0].qp}, {.qp = ends[1].qp}};
    struct address address[2];
    for (int i = 0; i < 2; i++) {
        address[i].qpn = ends[i].qp->qp_num;
        if (!TRY(!ibv_query_gid(ends[i].context, 1, 0, &address[i].gid))) return;
    }
    for (int i = 0; i < 2; i++) connect_end(&end[i], &address[1 - i], 7);
    struct ibv_sge sges[2] = {{(uintptr_t)ends[0].memory, 4096, ends[0].mr->lkey}, {(uintptr_t)ends[1].memory, 4096, ends[1].mr->lkey}};
    struct ibv_recv_wr receive = {.sg_list = &sges[1], .num_sge = 1}, *bad_receive;
    struct ibv_send_wr send = {.sg_list = &sges[0], .num_sge = 1, .opcode = IBV_WR_SEND}, *bad_send;
    if (!TRY(!ibv_post_recv(ends[1].qp, &receive, &bad_receive)) || !TRY(!ibv_post_send(ends[0].qp, &send, &bad_send))) return;
    next(ends[1].cq);
    next(ends[0].cq);
}

static void destroy(int i) {
    if (ends[i].qp) CHECK(!ibv_destroy_qp(ends[i].qp));
    if (ends[i].srq) CHECK(!ibv_destroy_srq(ends[i].srq));
    if (ends[i].mr) CHECK(!ibv_dereg_mr(ends[i].mr));
    if (ends[i].cq) CHECK(!ibv_destroy_cq(ends[i].cq));
    if (ends[i].channel) CHECK(!ibv_destroy_comp_channel(ends[i].channel));
    if (ends[i].pd) CHECK(!ibv_dealloc_pd(ends[i].pd));
    if (ends[i].context) CHECK(!ibv_close_device(ends[i].context));
}

int main(void) {
    int count = 0, before = open_descriptors();
    alarm(20); /* A hang ends here, by a signal. */
    if (TRY((list = ibv_get_device_list(&count))) && count >= 2) {
        if (make(0) && make(1)) talk();
        for (int i = 0; i < 2; i++) destroy(i);
    }
    if (list) ibv_free_device_list(list);
    if (failed) CHECK(failure > 0);
    alarm(0);
    int after = open_descriptors();
    if (after != before) {
        fprintf(stderr, "%d descriptors before, %d afterwards (%s)\n", before, after, failed ? failed : "nothing failed");
        return 1;
    }
    printf("%s\n", failed ? strerror(failure) : "fine");
    return failed ? 3 : 0;
}
