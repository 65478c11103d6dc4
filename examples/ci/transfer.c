/* Sends 64 KiB between two queue pairs of one device, over the network, and compares what arrived.
 * Exit status: 0 if it arrived, 1 if not. A small program as projects have them in their tests. */
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIZE = 65536, GID_INDEX = 0, PORT = 1 };

static void check(int ok, const char *what) {
    if (!ok) {
        perror(what);
        exit(1);
    }
}

static struct ibv_qp *make_qp(struct ibv_pd *pd, struct ibv_cq *cq) {
    struct ibv_qp_init_attr init = {
        .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
    };
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    check(qp != NULL, "ibv_create_qp");
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = PORT};
    check(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
    return qp;
}

static void connect_qp(struct ibv_qp *qp, union ibv_gid gid, uint32_t peer) {
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer, .max_dest_rd_atomic = 1,
        .ah_attr = {.is_global = 1, .port_num = PORT, .grh = {.dgid = gid, .sgid_index = GID_INDEX, .hop_limit = 64}},
    };
    check(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                        IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "RTR");
    struct ibv_qp_attr send = {.qp_state = IBV_QPS_RTS, .timeout = 10, .retry_cnt = 5, .rnr_retry = 7, .max_rd_atomic = 1};
    check(!ibv_modify_qp(qp, &send, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                        IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC), "RTS");
}

int main(void) {
    int count = 0;
    struct ibv_device **devices = ibv_get_device_list(&count);
    check(devices != NULL && count > 0, "no RDMA device");
    struct ibv_context *context = ibv_open_device(devices[0]);
    check(context != NULL, "ibv_open_device");
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
    check(pd != NULL && cq != NULL, "protection domain, completion queue");
    unsigned char *memory = calloc(2, SIZE);
    for (int i = 0; i < SIZE; i++) memory[i] = (unsigned char)(i * 31 + 7);
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, 2 * SIZE, IBV_ACCESS_LOCAL_WRITE);
    check(mr != NULL, "ibv_reg_mr");
    union ibv_gid gid;
    check(!ibv_query_gid(context, PORT, GID_INDEX, &gid), "ibv_query_gid");
    struct ibv_qp *from = make_qp(pd, cq), *to = make_qp(pd, cq);
    connect_qp(from, gid, to->qp_num);
    connect_qp(to, gid, from->qp_num);

    struct ibv_sge target = {.addr = (uintptr_t)(memory + SIZE), .length = SIZE, .lkey = mr->lkey};
    struct ibv_sge source = {.addr = (uintptr_t)memory, .length = SIZE, .lkey = mr->lkey};
    struct ibv_recv_wr recv = {.sg_list = &target, .num_sge = 1}, *bad_recv;
    struct ibv_send_wr send = {.sg_list = &source, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad_send;
    check(!ibv_post_recv(to, &recv, &bad_recv), "ibv_post_recv");
    check(!ibv_post_send(from, &send, &bad_send), "ibv_post_send");
    for (int done = 0; done < 2;) {
        struct ibv_wc wc;
        int polled = ibv_poll_cq(cq, 1, &wc);
        check(polled >= 0, "ibv_poll_cq");
        if (polled == 1 && wc.status != IBV_WC_SUCCESS) {
            fprintf(stderr, "transfer failed: %s\n", ibv_wc_status_str(wc.status));
            return 1;
        }
        done += polled;
    }
    check(!memcmp(memory, memory + SIZE, SIZE), "what arrived is what was sent");
    puts("64 KiB arrived");
    return 0;
}
