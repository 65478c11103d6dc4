/* A server that echoes, and its client, by libroce.so.
 *
 *   cc example.c -I. -L../../target/debug -lroce -o example
 *   LD_LIBRARY_PATH=../../target/debug ./example server 127.0.0.1 &
 *   LD_LIBRARY_PATH=../../target/debug ./example client 127.0.0.1 PORT
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "roce.h"

#define CHECK(expression)                                                                             \
    do {                                                                                              \
        if (!(expression)) {                                                                          \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #expression, rdmaLastError());     \
            exit(1);                                                                                  \
        }                                                                                             \
    } while (0)

static volatile int finished;

/* What the client writes into the server's buffer comes back as a message, so do messages. */
static void on_message(RdmaConn *conn, void *data, size_t len) {
    uint32_t imm = rdmaConnImm(conn);
    if (len == 0 && imm == 42) {
        char written[8] = {0};
        CHECK(rdmaConnReadOwn(conn, 0, written, 7) == RDMA_OK);
        CHECK(rdmaConnSend(conn, written, 7) == 7);
    } else {
        CHECK(rdmaConnSendWithImm(conn, imm + 1, data, len) == len);
    }
}

static void on_disconnect(RdmaConn *conn) {
    (void)conn;
    finished = 1;
}

static void on_accept(RdmaConn *conn) {
    CHECK(rdmaConnSetRecvCallback(conn, on_message) == RDMA_OK);
    CHECK(rdmaConnSetDisconnectCallback(conn, on_disconnect) == RDMA_OK);
    CHECK(rdmaConnWriteOwn(conn, 0, "published", 9) == RDMA_OK);
}

static int server(char *ip) {
    RdmaListener *listener;
    CHECK(rdmaServer(&listener, ip, 0) == RDMA_OK);
    CHECK(rdmaServerSetAcceptCallback(listener, on_accept) == RDMA_OK);
    CHECK(rdmaServerStart(listener) == RDMA_OK);
    printf("port %d\n", rdmaServerPort(listener));
    fflush(stdout);
    while (!finished) {
        usleep(1000);
    }
    CHECK(rdmaServerStop(listener) == RDMA_OK);
    rdmaServerRelease(listener);
    return 0;
}

static int client(char *ip, int port) {
    RdmaConn *conn = rdmaConn();
    CHECK(conn != NULL);
    CHECK(rdmaConnSend(conn, "too early", 9) == (size_t)-1);
    CHECK(rdmaConnect(conn, ip, port) == RDMA_OK);

    /* A message, and one with a number. */
    char buffer[64] = {0};
    CHECK(rdmaConnSend(conn, "hello", 5) == 5);
    CHECK(rdmaConnRecv(conn, buffer, sizeof buffer) == 5 && memcmp(buffer, "hello", 5) == 0 && rdmaConnImm(conn) == 1);
    CHECK(rdmaConnSendWithImm(conn, 7, "again", 5) == 5);
    CHECK(rdmaConnRecv(conn, buffer, sizeof buffer) == 5 && rdmaConnImm(conn) == 8);

    /* A large one, of which only the beginning is wanted. */
    size_t large = 3000000;
    char *many = malloc(large);
    memset(many, 'x', large);
    CHECK(rdmaConnSend(conn, many, large) == large);
    CHECK(rdmaConnRecv(conn, buffer, 4) == large && memcmp(buffer, "xxxx", 4) == 0);

    /* The server's buffer, read and written while its program does nothing. */
    CHECK(rdmaConnRead(conn, buffer, 9) == RDMA_OK && memcmp(buffer, "published", 9) == 0);
    CHECK(rdmaConnWriteWithImm(conn, 42, "written", 7) == RDMA_OK);
    CHECK(rdmaConnRecv(conn, buffer, sizeof buffer) == 7 && memcmp(buffer, "written", 7) == 0);
    CHECK(rdmaConnWrite(conn, many, 2000000) == (size_t)-1);

    /* Memory of this program. */
    uint32_t lkey, rkey;
    CHECK(rdmaConnRegister(conn, many, large, &lkey, &rkey) == RDMA_OK);
    uint64_t addr = (uint64_t)(uintptr_t)many;
    CHECK(rdmaSyncWriteSignaled(conn, addr, lkey + 1, addr, rkey, 8) == RDMA_ERR);
    CHECK(rdmaPAWriteSignaled(conn, addr, lkey, 0, 8) == RDMA_ERR && strstr(rdmaLastError(), "physical") != NULL);
    CHECK(rdmaPAReadSignaled(conn, addr, lkey, 0, 8) == RDMA_ERR);
    CHECK(rdmaPASyncWriteSignaled(conn, addr, lkey, 0, 8) == RDMA_ERR);
    CHECK(rdmaPASyncReadSignaled(conn, addr, lkey, 0, 8) == RDMA_ERR);
    CHECK(rdmaConnSend(NULL, "x", 1) == (size_t)-1);

    rdmaConnClose(conn);
    rdmaRuntimeStop();
    free(many);
    puts("all is well");
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "server") == 0) {
        return server(argv[2]);
    }
    if (argc == 4 && strcmp(argv[1], "client") == 0) {
        return client(argv[2], atoi(argv[3]));
    }
    fprintf(stderr, "usage: example server IP | client IP PORT\n");
    return 2;
}
