/* Many threads: on one connection, and on handles that others close. */
#include <stdatomic.h>

#include "check.h"

#define THREADS 4
#define MESSAGES 300

static struct pair p;
static atomic_long sum, received;

/* Message number i of a thread has a length and bytes of its own. */
static size_t length(long i) { return (size_t)(i * 37 % 2000 + 4); }

static void *sends(void *first) {
    char message[2048];
    for (long i = (long)first; i < (long)first + MESSAGES; i++) {
        memset(message, (char)i, length(i));
        memcpy(message, &i, 4);
        CHECK(roce_send(p.client, message, length(i), SOON) == ROCE_OK);
    }
    return NULL;
}

static void *receives(void *unused) {
    char message[2048];
    int64_t len;
    (void)unused;
    while ((len = roce_recv(p.server, message, sizeof message, SOON)) != ROCE_ECLOSED) {
        int i;
        CHECK(len >= 4);
        memcpy(&i, message, 4);
        CHECK(len == (int64_t)length(i));
        for (int64_t at = 4; at < len; at++) {
            CHECK(message[at] == (char)i);
        }
        atomic_fetch_add(&sum, i);
        atomic_fetch_add(&received, 1);
    }
    return NULL;
}

static void *adds(void *remote) {
    for (int i = 0; i < 100; i++) {
        CHECK(roce_fetch_add(p.client, remote, 0, 1, NULL, SOON) == ROCE_OK);
    }
    return NULL;
}

static void one_connection(void) {
    pthread_t threads[3 * THREADS];
    static uint64_t counter;
    struct roce_remote remote;
    CHECK(roce_publish(p.server, 1, &counter, 8, ROCE_ATOMIC) == ROCE_OK);
    CHECK(roce_lookup(p.client, 1, &remote, SOON) == ROCE_OK);
    for (long i = 0; i < THREADS; i++) {
        CHECK(pthread_create(&threads[i], NULL, sends, (void *)(i * MESSAGES)) == 0);
        CHECK(pthread_create(&threads[THREADS + i], NULL, receives, NULL) == 0);
        CHECK(pthread_create(&threads[2 * THREADS + i], NULL, adds, &remote) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        pthread_join(threads[2 * THREADS + i], NULL);
    }
    CHECK(roce_finish(p.client, SOON) == ROCE_OK);
    for (int i = THREADS; i < 2 * THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    long all = THREADS * MESSAGES;
    CHECK(atomic_load(&received) == all && atomic_load(&sum) == all * (all - 1) / 2);
    CHECK(counter == THREADS * 100);
}

static _Atomic int64_t shared[8];
static atomic_int is_over;

/* Uses handles that another thread may close at any moment. */
static void *uses(void *seed) {
    unsigned random = (unsigned)(uintptr_t)seed;
    static char memory[THREADS * 2][64];
    char *own = memory[(uintptr_t)seed % (THREADS * 2)];
    struct roce_remote remote = {0, 0, 0, 0};
    while (!atomic_load(&is_over)) {
        int64_t handle = atomic_load(&shared[rand_r(&random) % 8]);
        switch (rand_r(&random) % 6) {
        case 0: roce_send(handle, own, 16, 5); break;
        case 1: roce_recv(handle, own, 64, 5); break;
        case 2: roce_publish(handle, (uint64_t)(uintptr_t)seed, own, 64, ROCE_WRITE); break;
        case 3: roce_lookup(handle, 1, &remote, 5); break;
        case 4: roce_next(handle, 1); break;
        default: roce_close(handle); break;
        }
    }
    return NULL;
}

static void closed_handles(void) {
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++) {
        CHECK(pthread_create(&threads[i], NULL, uses, (void *)(i + 1)) == 0);
    }
    for (int i = 0; i < 12; i++) {
        connect_pair(&p);
        atomic_store(&shared[i % 8], p.client);
        atomic_store(&shared[(i + 3) % 8], p.server);
        usleep(20000);
    }
    atomic_store(&is_over, 1);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    for (int i = 0; i < 8; i++) {
        roce_close(atomic_load(&shared[i]));
    }
}

static void short_linger(roce_device device) {
    CHECK(roce_set(device, ROCE_LINGER_MS, 50) == ROCE_OK);
}

int main(void) {
    p = open_pair(1, short_linger);
    one_connection();
    roce_close(p.client);
    roce_close(p.server);
    closed_handles();
    CHECK(roce_close(p.listener) == ROCE_OK);
    CHECK(roce_close(p.devices[0]) == ROCE_OK && roce_close(p.devices[1]) == ROCE_OK);
    puts("all is well");
    return 0;
}
