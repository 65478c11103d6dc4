/* How much work many threads do on one device, as a share of what one thread does.
 *
 * Each thread makes a completion queue and two queue pairs that are connected to each other, has
 * 2,048 messages delivered one at a time, destroys them, and begins again. Messages are READs,
 * or SENDs into shared receive queues. */
#include <infiniband/verbs.h>

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MESSAGES = 2048, SRQS = 4, THREADS_MAX = 256, SIZE = 8 };

#define CHECK(what)                                                                                                    \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            fprintf(stderr, "threads: %s:%d: %s: %s\n", __FILE__, __LINE__, #what, strerror(errno));                   \
            exit(2);                                                                                                   \
        }                                                                                                              \
    } while (0)

static struct ibv_context *context;
static struct ibv_pd *pd;
static union ibv_gid gid;
static struct ibv_srq *srqs[SRQS];
static int with_srqs;
static atomic_long delivered;
static atomic_int stop;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static void connect_qp(struct ibv_qp *qp, uint32_t peer) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_READ};
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = peer,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 1,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .hop_limit = 1}},
    };
    CHECK(!ibv_modify_qp(qp, &attr,
                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                             IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
    CHECK(!ibv_modify_qp(qp, &attr,
                         IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                             IBV_QP_MAX_QP_RD_ATOMIC));
}

/* Polls until `completions` messages have completed, each with success. */
static void wait_for(struct ibv_cq *cq, int completions) {
    struct ibv_wc wc[2];
    while (completions > 0) {
        int count = ibv_poll_cq(cq, completions, wc);
        CHECK(count >= 0);
        for (int i = 0; i < count; i++) {
            if (wc[i].status != IBV_WC_SUCCESS) {
                fprintf(stderr, "threads: %s\n", ibv_wc_status_str(wc[i].status));
                exit(2);
            }
        }
        completions -= count;
    }
}

static void *work(void *number) {
    static char memories[THREADS_MAX][2 * SIZE];
    char *memory = memories[(intptr_t)number];
    struct ibv_srq *srq = with_srqs ? srqs[(intptr_t)number % SRQS] : NULL;
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, 2 * SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
    CHECK(mr);
    struct ibv_sge local = {(uintptr_t)memory, SIZE, mr->lkey}, remote = {(uintptr_t)memory + SIZE, SIZE, mr->lkey};
    struct ibv_recv_wr receive = {.sg_list = &remote, .num_sge = 1}, *bad_receive;
    struct ibv_send_wr send = {.sg_list = &local, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED}, *bad;
    send.opcode = srq ? IBV_WR_SEND : IBV_WR_RDMA_READ;
    send.wr.rdma.remote_addr = remote.addr;
    send.wr.rdma.rkey = mr->rkey;
    while (!stop) {
        struct ibv_cq *sends = ibv_create_cq(context, 4, NULL, NULL, 0);
        struct ibv_cq *receives = ibv_create_cq(context, 2 * THREADS_MAX, NULL, NULL, 0);
        CHECK(sends && receives);
        struct ibv_qp_init_attr init = {
            .send_cq = sends, .recv_cq = receives, .qp_type = IBV_QPT_RC, .cap = {4, 4, 1, 1, 0}};
        struct ibv_qp *qp = ibv_create_qp(pd, &init);
        init.srq = srq;
        struct ibv_qp *peer = ibv_create_qp(pd, &init);
        CHECK(qp && peer);
        connect_qp(qp, peer->qp_num);
        connect_qp(peer, qp->qp_num);
        for (int i = 0; i < MESSAGES && !stop; i++) {
            if (srq) CHECK(!ibv_post_srq_recv(srq, &receive, &bad_receive));
            CHECK(!ibv_post_send(qp, &send, &bad));
            wait_for(sends, 1);
            if (srq) wait_for(receives, 1);
            atomic_fetch_add_explicit(&delivered, 1, memory_order_relaxed);
        }
        CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_qp(peer) && !ibv_destroy_cq(sends) && !ibv_destroy_cq(receives));
    }
    /* With shared receive queues, a message of another thread may be on its way into this one's
     * memory. */
    if (!srq) CHECK(!ibv_dereg_mr(mr));
    return NULL;
}

/* Messages a second of a number of threads. */
static double measure(int threads, double seconds) {
    static pthread_t running[THREADS_MAX];
    stop = 0;
    for (intptr_t i = 0; i < threads; i++) CHECK(!pthread_create(&running[i], NULL, work, (void *)i));
    long before = delivered;
    double begun = now();
    struct timespec pause = {(time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9)};
    nanosleep(&pause, NULL);
    double rate = (delivered - before) / (now() - begun);
    stop = 1;
    for (int i = 0; i < threads; i++) CHECK(!pthread_join(running[i], NULL));
    return rate;
}

int main(int count, char **values) {
    double seconds = count > 1 ? atof(values[1]) : 3;
    int devices;
    struct ibv_device **list = ibv_get_device_list(&devices);
    CHECK(list && devices > 0 && (context = ibv_open_device(list[0])));
    CHECK((pd = ibv_alloc_pd(context)) && !ibv_query_gid(context, 1, 0, &gid));
    struct ibv_srq_init_attr srq = {.attr = {.max_wr = 4 * THREADS_MAX, .max_sge = 1}};
    for (int i = 0; i < SRQS; i++) CHECK((srqs[i] = ibv_create_srq(pd, &srq)));
    const int threads[] = {1, 2, 16, 256};
    int missed = 0;
    for (with_srqs = 0; with_srqs < 2; with_srqs++) {
        double one = 0;
        for (int i = 0; i < 4; i++) {
            double rate = measure(threads[i], seconds);
            if (i == 0) one = rate;
            printf("%3d threads, %s: %7.0f a second, %.2f of one thread's\n", threads[i],
                   with_srqs ? "SENDs into 4 SRQs" : "READs", rate, rate / one);
            fflush(stdout);
            missed |= rate < one / 2;
        }
    }
    return missed;
}
