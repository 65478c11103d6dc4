/* A server whose clients come and go: does its memory?
 *
 *   comes_and_goes snow|close|own CLIENTS
 *
 * by SnowRDMA's calls; the same, which close each connection; by the library's own.
 *
 * It counts bytes that are allocated, not pages that are resident. */
#include <malloc.h>
#include <stdatomic.h>

#include "check.h"

static atomic_int gone;
static int closes;

static void on_message(RdmaConn *conn, void *data, size_t len) { rdmaConnSend(conn, data, len); }

static void on_disconnect(RdmaConn *conn) {
    if (closes) {
        rdmaConnClose(conn);
    }
    atomic_fetch_add(&gone, 1);
}

static void on_accept(RdmaConn *conn) {
    CHECK(rdmaConnSetRecvCallback(conn, on_message) == RDMA_OK);
    CHECK(rdmaConnSetDisconnectCallback(conn, on_disconnect) == RDMA_OK);
}

static size_t allocated(void) {
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

/* By SnowRDMA's calls, both ends in this process. */
static void snow_client(RdmaListener *listener, int number) {
    char buffer[16];
    RdmaConn *conn = rdmaConn();
    CHECK(rdmaConnect(conn, "127.23.3.1", rdmaServerPort(listener)) == RDMA_OK);
    CHECK(rdmaConnSend(conn, "hello", 5) == 5 && rdmaConnRecv(conn, buffer, 16) == 5);
    rdmaConnClose(conn);
    for (int i = 0; i < SOON && atomic_load(&gone) <= number; i++) {
        usleep(1000);
    }
    CHECK(atomic_load(&gone) == number + 1);
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    int clients = atoi(argv[2]);
    closes = strcmp(argv[1], "close") == 0;
    int is_own = strcmp(argv[1], "own") == 0;
    RdmaListener *listener = NULL;
    struct pair p;
    if (is_own) {
        p = open_pair(4, NULL);
    } else {
        CHECK(rdmaServer(&listener, "127.23.3.1", 0) == RDMA_OK);
        CHECK(rdmaServerSetAcceptCallback(listener, on_accept) == RDMA_OK);
        CHECK(rdmaServerStart(listener) == RDMA_OK);
    }
    size_t before = 0;
    for (int i = 0; i < clients; i++) {
        if (i == clients / 2) {
            before = allocated();
        }
        if (is_own) {
            static char memory[4096];
            CHECK(roce_publish(p.server, 1, memory, sizeof memory, ROCE_READ) == ROCE_OK);
            CHECK(roce_close(p.client) == ROCE_OK && roce_close(p.server) == ROCE_OK);
            connect_pair(&p);
        } else {
            snow_client(listener, i);
        }
    }
    /* A connection takes more than a million bytes. The last one is being freed. */
    size_t after = allocated(), most = before + (size_t)clients / 2 * 50000;
    for (int i = 0; i < SOON && after > most; i++) {
        usleep(1000);
        after = allocated();
    }
    printf("%zd bytes for a client that has gone\n", (ssize_t)(after - before) / (clients / 2));
    CHECK(after <= most);
    if (is_own) {
        close_pair(&p);
    } else {
        rdmaServerRelease(listener);
    }
    puts("all is well");
    return 0;
}
