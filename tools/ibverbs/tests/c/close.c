/* A device is closed with objects left open: its descriptors are closed, what was left is
 * refused, and other contexts of the device are as before. Two devices. */
#include "verbs.h"

#include <fcntl.h>
#include <poll.h>

static struct end here, there, third;

/* Makes everything that a device has, and leaves it. */
static void leave_all(void) {
    struct address a = make_end(&here, 0), b = make_end(&there, 1);
    connect_end(&here, &b, 1);
    connect_end(&there, &a, 1);
    exchange(&here, &there);
    struct ibv_comp_channel *channel = ibv_create_comp_channel(here.context);
    CHECK(channel);
    struct ibv_cq *cq = ibv_create_cq(here.context, 4, NULL, channel, 0);
    CHECK(cq && !ibv_req_notify_cq(cq, 0));
    struct ibv_srq_init_attr attr = {.attr = {.max_wr = 4, .max_sge = 1}};
    struct ibv_srq *srq = ibv_create_srq(here.pd, &attr);
    struct ibv_ah_attr to = {.is_global = 1, .port_num = 1, .grh = {.dgid = b.gid, .hop_limit = 1}};
    CHECK(srq && ibv_create_ah(here.pd, &to) && ibv_alloc_mw(here.pd, IBV_MW_TYPE_1));
    struct ibv_xrcd_init_attr xrcd = {
        .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT};
    CHECK(ibv_open_xrcd(here.context, &xrcd));
    struct ibv_device_attr_ex device;
    CHECK(!ibv_query_device_ex(here.context, NULL, &device) && device.max_dm_size > 0);
    struct ibv_alloc_dm_attr all = {.length = device.max_dm_size};
    struct ibv_dm *dm = ibv_alloc_dm(here.context, &all);
    CHECK(dm && !ibv_alloc_dm(here.context, &all));
    uint32_t number = dm->handle, pd_number = here.pd->handle, mr_number = here.mr->handle;
    CHECK(!ibv_close_device(here.context) && !ibv_close_device(there.context));

    /* Nothing of it can be imported, and all memory of the device is free again. */
    struct ibv_context *again = open_device(0);
    CHECK(again && !ibv_import_dm(again, number) && !ibv_import_pd(again, pd_number));
    struct ibv_pd *pd = ibv_alloc_pd(again);
    CHECK(pd && !ibv_import_mr(pd, mr_number) && !ibv_dealloc_pd(pd));
    CHECK((dm = ibv_alloc_dm(again, &all)) && !ibv_free_dm(dm) && !ibv_close_device(again));

    /* No call with what was left may do anything, or crash. */
    struct ibv_wc wc;
    CHECK(ibv_poll_cq(cq, 1, &wc) < 0 && post_send(&here, 1) == ENODEV && post_receive(&here, 1) == ENODEV);
    CHECK(!ibv_alloc_pd(here.context) && !ibv_create_comp_channel(here.context) && ibv_close_device(here.context));
    CHECK(ibv_destroy_qp(here.qp) && ibv_destroy_srq(srq) && ibv_destroy_cq(cq) && ibv_destroy_comp_channel(channel));
    CHECK(ibv_dereg_mr(here.mr) && ibv_dealloc_pd(here.pd));
}

/* One of two contexts is closed with a connected queue pair in it: nothing answers there any
 * more, and the other context works as before. */
static void close_one_of_two(void) {
    struct address a = make_end(&here, 0), b = make_end(&there, 1), c = make_end(&third, 0);
    connect_end(&here, &b, 1);
    connect_end(&there, &a, 1);
    exchange(&here, &there);
    CHECK(!ibv_close_device(here.context));
    CHECK(!post_send(&there, 1) && next(there.sends).status == IBV_WC_RETRY_EXC_ERR);
    destroy_end(&there);
    b = make_end(&there, 1);
    connect_end(&third, &b, 7);
    connect_end(&there, &c, 7);
    exchange(&third, &there);
    exchange(&there, &third);
    destroy_end(&third);
    destroy_end(&there);
}

/* Channels and the descriptor of asynchronous events are never writable, and readable when there
 * is an event. */
static void descriptors_are_read_only(void) {
    make_end(&here, 0);
    struct ibv_comp_channel *channel = ibv_create_comp_channel(here.context);
    struct ibv_cq *cq = ibv_create_cq(here.context, 4, &here, channel, 0);
    struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {1, 1, 1, 1, 0}};
    struct ibv_qp *qp = ibv_create_qp(here.pd, &init);
    CHECK(channel && cq && qp && !ibv_req_notify_cq(cq, 0));
    int copy = dup(channel->fd);
    CHECK(!fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK));
    struct pollfd both[] = {{copy, POLLIN | POLLOUT, 0}, {here.context->async_fd, POLLIN | POLLOUT, 0}};
    CHECK(poll(both, 2, 0) == 0);
    struct ibv_cq *woken = NULL;
    void *context = NULL;
    CHECK(ibv_get_cq_event(channel, &woken, &context) == -1 && errno == EAGAIN);
    fail_qp(qp);
    struct ibv_recv_wr wr = {.wr_id = 1}, *bad;
    CHECK(!ibv_post_recv(qp, &wr, &bad));
    CHECK(poll(both, 2, 5000) == 1 && both[0].revents == POLLIN);
    CHECK(!ibv_get_cq_event(channel, &woken, &context) && woken == cq && context == &here);
    CHECK(poll(both, 2, 0) == 0);
    ibv_ack_cq_events(cq, 1);
    close(copy);
    CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(channel));
    destroy_end(&here);
}

/* A program may read from a channel's descriptor, or close it before it destroys the channel, as
 * owners of descriptors do: completions then neither end the program nor block it. */
static void program_uses_the_descriptor(int closes) {
    make_end(&here, 0);
    struct ibv_comp_channel *channel = ibv_create_comp_channel(here.context);
    struct ibv_cq *cq = ibv_create_cq(here.context, 4, &here, channel, 0);
    struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {1, 1, 1, 1, 0}};
    struct ibv_qp *qp = ibv_create_qp(here.pd, &init);
    CHECK(channel && cq && qp && !ibv_req_notify_cq(cq, 0));
    if (closes)
        CHECK(!close(channel->fd));
    fail_qp(qp);
    struct ibv_recv_wr wr = {.wr_id = 1}, *bad;
    CHECK(!ibv_post_recv(qp, &wr, &bad));
    struct ibv_wc wc;
    CHECK(ibv_poll_cq(cq, 1, &wc) == 1);
    if (!closes) {
        char byte;
        CHECK(read(channel->fd, &byte, 1) == 1);
        struct ibv_cq *woken = NULL;
        void *context = NULL;
        CHECK(!ibv_get_cq_event(channel, &woken, &context) && woken == cq);
        ibv_ack_cq_events(cq, 1);
    }
    CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(channel));
    destroy_end(&here);
}

int main(void) {
    int before = descriptors();
    for (int round = 0; round < 3; round++) {
        leave_all();
        CHECK(descriptors() == before);
    }
    close_one_of_two();
    descriptors_are_read_only();
    program_uses_the_descriptor(1);
    alarm(60);
    program_uses_the_descriptor(0);
    alarm(0);
    CHECK(descriptors() == before);
    puts("close: fine");
}
