/* Threads with the smallest stack that there is move data, threads with twice as much do
 * everything, also with a library that is not optimized; and threads are canceled while they
 * wait for events and while they poll. Neither harms the program. */
#define _GNU_SOURCE
#include "verbs.h"

#include <limits.h>
#include <poll.h>
#include <pthread.h>

static struct end ends[2];

static void run_with_stack(size_t size, void *(*run)(void *)) {
    pthread_attr_t small;
    pthread_t thread;
    CHECK(!pthread_attr_init(&small) && !pthread_attr_setstacksize(&small, size));
    CHECK(!pthread_create(&thread, &small, run, NULL));
    CHECK(!pthread_join(thread, NULL));
}

static void *exchange_many(void *unused) {
    for (int i = 0; i < 100; i++) exchange(&ends[i % 2], &ends[1 - i % 2]);
    return unused;
}

/* The life of a connection, its data, and its events. */
static void *whole_life(void *unused) {
    struct address address[2];
    for (int i = 0; i < 2; i++) address[i] = make_end(&ends[i], i);
    for (int i = 0; i < 2; i++) connect_end(&ends[i], &address[1 - i], 7);
    run_with_stack(PTHREAD_STACK_MIN, exchange_many);
    exchange_many(NULL);
    /* Something that fails, and is told as an event. */
    struct ibv_sge sge = {(uintptr_t)ends[0].memory, SIZE, ends[0].mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE}, *bad;
    wr.wr.rdma.remote_addr = (uintptr_t)ends[1].memory;
    wr.wr.rdma.rkey = 1;
    CHECK(!ibv_post_send(ends[0].qp, &wr, &bad));
    CHECK(next(ends[0].sends).status != IBV_WC_SUCCESS);
    struct ibv_async_event event;
    CHECK(!ibv_get_async_event(ends[1].context, &event));
    ibv_ack_async_event(&event);
    struct ibv_device_attr attr;
    struct ibv_port_attr port;
    CHECK(!ibv_query_device(ends[0].context, &attr) && !ibv_query_port(ends[0].context, 1, &port));
    for (int i = 0; i < 2; i++) destroy_end(&ends[i]);
    return unused;
}

static struct ibv_context *context;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static int started[2];

static void *wait_for_completion(void *unused) {
    struct ibv_cq *told;
    void *cookie;
    CHECK(write(started[1], "", 1) == 1);
    ibv_get_cq_event(channel, &told, &cookie);
    return unused;
}

static void *wait_for_event(void *unused) {
    struct ibv_async_event event;
    CHECK(write(started[1], "", 1) == 1);
    ibv_get_async_event(context, &event);
    return unused;
}

/* No call of the data path is where a thread is canceled. */
static void *poll_until_canceled(void *unused) {
    struct ibv_wc wc;
    CHECK(write(started[1], "", 1) == 1);
    for (int i = 0; i < 20000; i++) CHECK(ibv_poll_cq(cq, 1, &wc) == 0);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    CHECK(pd && !ibv_dealloc_pd(pd));
    for (;;) pthread_testcancel();
    return unused;
}

/* Nor is it one when packets are written to a capture. */
static void *exchange_until_canceled(void *unused) {
    CHECK(write(started[1], "", 1) == 1);
    for (int i = 0; i < 2000; i++) exchange(&ends[i % 2], &ends[1 - i % 2]);
    for (;;) pthread_testcancel();
    return unused;
}

static void cancel(void *(*run)(void *)) {
    pthread_t thread;
    void *result;
    char byte;
    CHECK(!pthread_create(&thread, NULL, run, NULL));
    CHECK(read(started[0], &byte, 1) == 1);
    CHECK(!pthread_cancel(thread));
    CHECK(!pthread_join(thread, &result) && result == PTHREAD_CANCELED);
}

int main(void) {
    run_with_stack(2 * PTHREAD_STACK_MIN, whole_life);
    CHECK(!pipe(started));
    CHECK((context = open_device(0)) && (channel = ibv_create_comp_channel(context)));
    CHECK((cq = ibv_create_cq(context, 4, NULL, channel, 0)));
    cancel(wait_for_completion);
    cancel(wait_for_event);
    cancel(poll_until_canceled);
    /* And all goes on afterwards. */
    CHECK(!ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(channel) && !ibv_close_device(context));
    CHECK(!setenv("ROCE_PCAP", "/dev/null", 1));
    struct address address[2];
    for (int i = 0; i < 2; i++) address[i] = make_end(&ends[i], i);
    for (int i = 0; i < 2; i++) connect_end(&ends[i], &address[1 - i], 7);
    cancel(exchange_until_canceled);
    exchange(&ends[0], &ends[1]);
    for (int i = 0; i < 2; i++) destroy_end(&ends[i]);
    puts("fine");
    return 0;
}
