/* What the test programs have in common: an end of a connection, and how it is connected. */
#ifndef VERBS_H
#define VERBS_H

#include <infiniband/verbs.h>

#include <dirent.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"

enum { DEPTH = 256, SIZE = 64 };

/* How one end is called by the other. */
struct address {
    union ibv_gid gid;
    uint32_t qpn;
};

struct end {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_cq *sends, *receives;
    struct ibv_mr *mr;
    struct ibv_qp *qp;
    char memory[DEPTH * SIZE];
};

static inline struct ibv_context *open_device(int index) {
    int count = 0;
    struct ibv_device **list = ibv_get_device_list(&count);
    CHECK(list && index < count);
    struct ibv_context *context = ibv_open_device(list[index]);
    int error = errno;
    ibv_free_device_list(list);
    errno = error;
    return context;
}

static inline struct address make_end(struct end *end, int index) {
    CHECK((end->context = open_device(index)));
    CHECK((end->pd = ibv_alloc_pd(end->context)));
    CHECK((end->sends = ibv_create_cq(end->context, 4 * DEPTH, NULL, NULL, 0)));
    CHECK((end->receives = ibv_create_cq(end->context, 4 * DEPTH, NULL, NULL, 0)));
    CHECK((end->mr = ibv_reg_mr(end->pd, end->memory, sizeof end->memory, IBV_ACCESS_LOCAL_WRITE)));
    struct ibv_qp_init_attr init = {
        .send_cq = end->sends,
        .recv_cq = end->receives,
        .qp_type = IBV_QPT_RC,
        .sq_sig_all = 1,
        .cap = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1},
    };
    CHECK((end->qp = ibv_create_qp(end->pd, &init)));
    struct address address = {.qpn = end->qp->qp_num};
    CHECK(!ibv_query_gid(end->context, 1, 0, &address.gid));
    return address;
}

static inline void connect_end(struct end *end, const struct address *to, uint8_t retries) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    CHECK(!ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = to->qpn,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = to->gid, .hop_limit = 1}},
    };
    CHECK(!ibv_modify_qp(end->qp, &attr,
                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                             IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = retries, .rnr_retry = 7, .max_rd_atomic = 1};
    CHECK(!ibv_modify_qp(end->qp, &attr,
                         IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                             IBV_QP_MAX_QP_RD_ATOMIC));
}

static inline void destroy_end(struct end *end) {
    CHECK(!ibv_destroy_qp(end->qp));
    CHECK(!ibv_dereg_mr(end->mr));
    CHECK(!ibv_destroy_cq(end->sends));
    CHECK(!ibv_destroy_cq(end->receives));
    CHECK(!ibv_dealloc_pd(end->pd));
    CHECK(!ibv_close_device(end->context));
}

static inline int post_send(struct end *end, uint64_t id) {
    struct ibv_sge sge = {(uintptr_t)end->memory + id % DEPTH * SIZE, SIZE, end->mr->lkey};
    struct ibv_send_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
    return ibv_post_send(end->qp, &wr, &bad);
}

static inline int post_receive(struct end *end, uint64_t id) {
    struct ibv_sge sge = {(uintptr_t)end->memory + id % DEPTH * SIZE, SIZE, end->mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1}, *bad;
    return ibv_post_recv(end->qp, &wr, &bad);
}

/* Brings a queue pair into the error state, in which everything that is posted completes at
 * once. */
static inline void fail_qp(struct ibv_qp *qp) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    attr.qp_state = IBV_QPS_ERR;
    CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
}

/* The next completion of a queue. */
static inline struct ibv_wc next(struct ibv_cq *cq) {
    struct ibv_wc wc;
    int count;
    while ((count = ibv_poll_cq(cq, 1, &wc)) == 0) {
    }
    CHECK(count == 1);
    return wc;
}

/* A message from one end to the other, and all is well. */
static inline void exchange(struct end *from, struct end *to) {
    CHECK(!post_receive(to, 1));
    CHECK(!post_send(from, 1));
    CHECK(next(to->receives).status == IBV_WC_SUCCESS);
    CHECK(next(from->sends).status == IBV_WC_SUCCESS);
}

/* How many descriptors this process has. */
static inline int descriptors(void) {
    int count = 0;
    DIR *all = opendir("/proc/self/fd");
    CHECK(all);
    while (readdir(all)) count++;
    closedir(all);
    return count;
}

/* How many pages of its own this process uses. */
static inline long pages(void) {
    long size, resident, shared;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%ld %ld %ld", &size, &resident, &shared) == 3);
    fclose(file);
    return resident - shared;
}

#endif
