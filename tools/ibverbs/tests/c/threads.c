/* Many threads on one queue pair and its completion queues; objects made and destroyed by many
 * threads at once; devices opened and closed again and again. Two devices. */
#include "verbs.h"

#include <pthread.h>
#include <stdatomic.h>

enum { THREADS = 4, MESSAGES = 2000, TOTAL = THREADS * MESSAGES, ROUNDS = 100 };

static struct end here, there;
static atomic_int sent, completed, received;
static atomic_uchar seen[TOTAL];

static void *run(void *(*what)(void *), pthread_t *thread, intptr_t number) {
    CHECK(!pthread_create(thread, NULL, what, (void *)number));
    return NULL;
}

/* Posts its share; what does not fit is tried again. */
static void *sender(void *number) {
    intptr_t first = (intptr_t)number * MESSAGES;
    for (intptr_t id = first; id < first + MESSAGES; id++) {
        int code;
        while ((code = post_send(&here, id)) == ENOMEM) sched_yield();
        CHECK(code == 0);
        atomic_fetch_add(&sent, 1);
    }
    return NULL;
}

/* Takes completions of sends, whosever they are. Each comes once. */
static void *completer(void *unused) {
    struct ibv_wc wc[7];
    while (atomic_load(&completed) < TOTAL) {
        int count = ibv_poll_cq(here.sends, 7, wc);
        CHECK(count >= 0);
        for (int i = 0; i < count; i++) {
            CHECK(wc[i].status == IBV_WC_SUCCESS && wc[i].wr_id < TOTAL);
            CHECK(atomic_fetch_add(&seen[wc[i].wr_id], 1) == 0);
        }
        atomic_fetch_add(&completed, count);
    }
    return unused;
}

/* Takes what arrives, and makes room for more. */
static void *receiver(void *unused) {
    struct ibv_wc wc[3];
    while (atomic_load(&received) < TOTAL) {
        int count = ibv_poll_cq(there.receives, 3, wc);
        CHECK(count >= 0);
        for (int i = 0; i < count; i++) {
            CHECK(wc[i].status == IBV_WC_SUCCESS && wc[i].byte_len == SIZE);
            CHECK(!post_receive(&there, wc[i].wr_id));
        }
        atomic_fetch_add(&received, count);
    }
    return unused;
}

/* Makes and destroys objects of a device that others use. */
static void *maker(void *unused) {
    char memory[4096];
    while (atomic_load(&received) < TOTAL) {
        struct ibv_pd *pd = ibv_alloc_pd(here.context);
        CHECK(pd);
        struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
        struct ibv_cq *cq = ibv_create_cq(here.context, 16, NULL, NULL, 0);
        CHECK(mr && cq);
        struct ibv_qp_init_attr init = {
            .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD, .cap = {4, 4, 1, 1, 0}};
        struct ibv_qp *qp = ibv_create_qp(pd, &init);
        CHECK(qp);
        CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd));
        struct ibv_context *again = open_device(0);
        CHECK(again && !ibv_close_device(again));
    }
    return unused;
}

static void many_threads(void) {
    struct address a = make_end(&here, 0), b = make_end(&there, 1);
    connect_end(&here, &b, 7);
    connect_end(&there, &a, 7);
    for (int id = 0; id < DEPTH; id++) CHECK(!post_receive(&there, id));
    void *(*const kinds[])(void *) = {sender, completer, receiver, maker};
    const int counts[] = {THREADS, 2, 2, 2};
    pthread_t threads[THREADS + 6];
    int count = 0;
    for (int kind = 0; kind < 4; kind++)
        for (intptr_t i = 0; i < counts[kind]; i++) run(kinds[kind], &threads[count++], i);
    while (count > 0) CHECK(!pthread_join(threads[--count], NULL));
    CHECK(sent == TOTAL && completed == TOTAL && received == TOTAL);
    destroy_end(&here);
    destroy_end(&there);
}

/* Everything that a device has, and a message by it; then nothing of it is left. */
static void *open_and_close(void *unused) {
    struct address a = make_end(&here, 0), b = make_end(&there, 1);
    connect_end(&here, &b, 7);
    connect_end(&there, &a, 7);
    struct ibv_comp_channel *channel = ibv_create_comp_channel(here.context);
    CHECK(channel && !ibv_destroy_comp_channel(channel));
    exchange(&here, &there);
    destroy_end(&here);
    destroy_end(&there);
    return unused;
}

/* Several threads open and close the same device at once: it is shared, started and stopped
 * under them. */
static void *only_open_and_close(void *number) {
    for (int i = 0; i < 20; i++) {
        struct ibv_context *context = open_device((intptr_t)number % 2);
        CHECK(context && !ibv_close_device(context));
    }
    return NULL;
}

int main(void) {
    many_threads();

    pthread_t threads[THREADS];
    for (intptr_t i = 0; i < THREADS; i++) run(only_open_and_close, &threads[i], i);
    for (int i = 0; i < THREADS; i++) CHECK(!pthread_join(threads[i], NULL));

    for (int i = 0; i < ROUNDS / 2; i++) open_and_close(NULL);
    /* A page for each round would be a leak, and would show every time; the heap may still
     * settle. */
    long more = ROUNDS;
    for (int attempt = 0; attempt < 5 && more >= ROUNDS; attempt++) {
        int descriptors_before = descriptors();
        long pages_before = pages();
        for (int i = 0; i < ROUNDS; i++) open_and_close(NULL);
        CHECK(descriptors() == descriptors_before);
        more = pages() - pages_before;
        if (more >= ROUNDS) fprintf(stderr, "%ld pages more after %d rounds\n", more, ROUNDS);
    }
    CHECK(more < ROUNDS);
    puts("threads: fine");
}
