/* Structures that are not, or no longer, what they seem: control verbs refuse them, and nothing
 * is freed twice. It says what is wrong, or that all is fine. */
#include "verbs.h"

#include <fcntl.h>

static struct ibv_context *context, *other;

/* What a kernel says to a number, or to a device's file, that it does not know. */
static int refused(int result) { return result == EINVAL || result == ENOENT; }

/* Destroying it is refused with a wrong number, of a wrong device, and as a copy; then it works,
 * once. */
#define DESTROY(type, object, number, destroy)                                                                         \
    do {                                                                                                               \
        struct type *held = object, *copy = malloc(sizeof *copy + 4096);                                               \
        memset(copy, 0, sizeof *copy + 4096);                                                                          \
        memcpy(copy, held, sizeof *copy);                                                                              \
        CHECK(refused(destroy(copy)));                                                                                 \
        held->number ^= 0x5a5a;                                                                                        \
        CHECK(refused(destroy(held)));                                                                                 \
        held->number ^= 0x5a5a;                                                                                        \
        held->context = other;                                                                                         \
        CHECK(refused(destroy(held)));                                                                                 \
        held->context = context;                                                                                       \
        CHECK(!destroy(held));                                                                                         \
        CHECK(refused(destroy(held)));                                                                                 \
        free(copy);                                                                                                    \
    } while (0)

int main(void) {
    static char memory[4096];
    CHECK((context = open_device(0)) && (other = open_device(1)));
    struct ibv_context *again = open_device(0);
    struct ibv_pd *pd = ibv_alloc_pd(context), *other_pd = ibv_alloc_pd(other);
    struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
    struct ibv_cq *cq = ibv_create_cq(context, 8, NULL, channel, 0), *other_cq = ibv_create_cq(other, 8, NULL, NULL, 0);
    struct ibv_cq *second_cq = ibv_create_cq(again, 8, NULL, NULL, 0);
    CHECK(again && pd && other_pd && channel && cq && other_cq && second_cq);
    struct ibv_srq_init_attr srq_init = {.attr = {.max_wr = 4, .max_sge = 1}};
    struct ibv_srq *srq = ibv_create_srq(pd, &srq_init);
    struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC,
                                    .cap = {.max_send_wr = 4, .max_send_sge = 1}};
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
    struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
    struct ibv_ah_attr way = {.is_global = 1, .port_num = 1};
    CHECK(!ibv_query_gid(context, 1, 0, &way.grh.dgid));
    struct ibv_ah *ah = ibv_create_ah(pd, &way);
    CHECK(srq && qp && mr && mw && ah);

    /* What belongs to another open device, be it of the same name, cannot be used with what is
     * of this one. */
    struct ibv_cq *foreign[] = {other_cq, second_cq};
    for (int i = 0; i < 2; i++) {
        init.send_cq = foreign[i];
        errno = 0;
        CHECK(!ibv_create_qp(pd, &init) && refused(errno));
        init.send_cq = cq;
        init.recv_cq = foreign[i];
        CHECK(!ibv_create_qp(pd, &init) && refused(errno));
        init.recv_cq = cq;
    }
    errno = 0;
    CHECK(!ibv_create_qp(other_pd, &init) && refused(errno));
    CHECK(!ibv_create_cq(other, 8, NULL, channel, 0) && refused(errno));
    CHECK(!ibv_create_qp((struct ibv_pd *)cq, &init) && refused(errno));

    /* Other verbs refuse them, too. */
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    struct ibv_srq_attr srq_attr;
    qp->handle++;
    CHECK(refused(ibv_modify_qp(qp, &attr, IBV_QP_STATE)) && refused(ibv_query_qp(qp, &attr, 0, &init)));
    qp->handle--;
    srq->handle++;
    CHECK(refused(ibv_query_srq(srq, &srq_attr)) && refused(ibv_modify_srq(srq, &srq_attr, IBV_SRQ_LIMIT)));
    srq->handle--;
    cq->handle++;
    CHECK(refused(ibv_resize_cq(cq, 16)));
    cq->handle--;
    pd->handle++;
    errno = 0;
    CHECK(!ibv_reg_mr(pd, memory, sizeof memory, 0) && refused(errno));
    CHECK(!ibv_alloc_mw(pd, IBV_MW_TYPE_1) && !ibv_create_ah(pd, &way) && !ibv_create_srq(pd, &srq_init));
    pd->handle--;
    CHECK(!ibv_query_qp(qp, &attr, 0, &init) && !ibv_query_srq(srq, &srq_attr) && !ibv_resize_cq(cq, 16));

    /* What is in use stays, whatever was tried. */
    CHECK(ibv_dealloc_pd(pd) == EBUSY && ibv_destroy_cq(cq) == EBUSY && ibv_destroy_srq(srq) == EBUSY);
    CHECK(ibv_destroy_comp_channel(channel) == EBUSY);
    DESTROY(ibv_ah, ah, handle, ibv_destroy_ah);
    DESTROY(ibv_mw, mw, handle, context->ops.dealloc_mw); /* the inline function looks at what was freed */
    DESTROY(ibv_mr, mr, handle, ibv_dereg_mr);
    DESTROY(ibv_qp, qp, handle, ibv_destroy_qp);
    DESTROY(ibv_srq, srq, handle, ibv_destroy_srq);
    DESTROY(ibv_cq, cq, handle, ibv_destroy_cq);
    DESTROY(ibv_comp_channel, channel, fd, ibv_destroy_comp_channel);
    DESTROY(ibv_pd, pd, handle, ibv_dealloc_pd);

    /* Closed is closed. */
    CHECK(!ibv_destroy_cq(second_cq) && !ibv_close_device(again) && refused(ibv_close_device(again)));
    errno = 0;
    CHECK(!ibv_alloc_pd(again) && refused(errno));
    CHECK(!ibv_destroy_cq(other_cq) && !ibv_dealloc_pd(other_pd));
    CHECK(!ibv_close_device(other) && !ibv_close_device(context));
    puts("fine");
    return 0;
}
