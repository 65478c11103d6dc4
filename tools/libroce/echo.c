/* A server that returns what it is sent, and counts it in memory that its client reads. */
#include <inttypes.h>
#include <roce.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The number under which the server publishes its counter. */
#define COUNTER 1

/* Ends the program if a call has failed. */
static int64_t check(int64_t result, const char *what) {
    if (result < 0) {
        fprintf(stderr, "%s: %s (%s)\n", what, roce_strerror((int)result), roce_last_error());
        exit(1);
    }
    return result;
}

static void serve(const char *address) {
    roce_listener listener = check(roce_listen(ROCE_AUTO, address), "listen");
    roce_connection connection = check(roce_accept(listener, 60000), "accept");
    uint64_t counter = 0;
    int rights = ROCE_READ | ROCE_ATOMIC;
    check(roce_publish(connection, COUNTER, &counter, sizeof counter, rights), "publish");

    char message[4096];
    int64_t len;
    while ((len = roce_recv(connection, message, sizeof message, ROCE_FOREVER)) != ROCE_ECLOSED) {
        check(len, "receive");
        counter++;
        check(roce_send(connection, message, (size_t)len, ROCE_FOREVER), "send");
    }
    check(roce_close(connection), "close");
    check(roce_close(listener), "close the listener");
}

static void ask(const char *address) {
    roce_connection connection = check(roce_connect(ROCE_AUTO, address, 5000), "connect");
    const char *words[] = {"hello", "world"};
    char answer[4096];
    for (int i = 0; i < 2; i++) {
        check(roce_send(connection, words[i], strlen(words[i]), 5000), "send");
        int64_t len = check(roce_recv(connection, answer, sizeof answer, 5000), "receive");
        printf("%.*s\n", (int)len, answer);
    }

    /* The server's program does nothing for these. */
    struct roce_remote counter;
    uint64_t count, before;
    check(roce_lookup(connection, COUNTER, &counter, 5000), "look up");
    check(roce_read(connection, &counter, 0, &count, sizeof count, 5000), "read");
    check(roce_fetch_add(connection, &counter, 0, 40, &before, 5000), "add");
    check(roce_read(connection, &counter, 0, &count, sizeof count, 5000), "read");
    printf("%" PRIu64 " messages, and now %" PRIu64 "\n", before, count);
    check(roce_close(connection), "close");
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "server") == 0) {
        serve(argv[2]);
    } else if (argc == 3 && strcmp(argv[1], "client") == 0) {
        ask(argv[2]);
    } else {
        fprintf(stderr, "usage: echo server|client ADDRESS:PORT\n");
        return 2;
    }
    return 0;
}
