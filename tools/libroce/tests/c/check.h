/* What the tests in C share. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "roce.h"

#define CHECK(expression)                                                                        \
    do {                                                                                         \
        if (!(expression)) {                                                                     \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #expression,                  \
                    roce_last_error());                                                          \
            _exit(1);                                                                            \
        }                                                                                        \
    } while (0)

/* Long enough for a loaded machine. */
#define SOON 60000

/* Both ends of a connection in one process, each on a device of its own. */
struct pair {
    roce_device devices[2];
    roce_listener listener;
    roce_connection server, client;
};

static inline void *accept_one(void *pair) {
    struct pair *p = pair;
    p->server = roce_accept(p->listener, SOON);
    return NULL;
}

static inline void connect_pair(struct pair *p) {
    char address[64];
    pthread_t thread;
    CHECK(roce_local_address(p->listener, address, sizeof address) > 0);
    CHECK(pthread_create(&thread, NULL, accept_one, p) == 0);
    p->client = roce_connect(p->devices[1], address, SOON);
    CHECK(p->client > 0);
    pthread_join(thread, NULL);
    CHECK(p->server > 0);
}

/* Opens 127.23.NUMBER.1 and .2, with the options that `set` sets. */
static inline struct pair open_pair(int number, void (*set)(roce_device)) {
    struct pair p;
    char name[64];
    for (int i = 0; i < 2; i++) {
        snprintf(name, sizeof name, "udp:127.23.%d.%d", number, i + 1);
        p.devices[i] = roce_open(name);
        CHECK(p.devices[i] > 0);
        if (set != NULL) {
            set(p.devices[i]);
        }
    }
    snprintf(name, sizeof name, "127.23.%d.1:0", number);
    p.listener = roce_listen(p.devices[0], name);
    CHECK(p.listener > 0);
    connect_pair(&p);
    return p;
}

static inline void close_pair(struct pair *p) {
    CHECK(roce_close(p->client) == ROCE_OK);
    CHECK(roce_close(p->server) == ROCE_OK);
    CHECK(roce_close(p->listener) == ROCE_OK);
    CHECK(roce_close(p->devices[0]) == ROCE_OK && roce_close(p->devices[1]) == ROCE_OK);
}
