/* A server that echoes, and its client, by the calls of SnowRDMA.
 *
 *   snow server IP        prints "port N", and ends with its client
 *   snow client IP PORT
 */
#include <sys/mman.h>

#include "check.h"

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

/* Sums of an offset and a length that are outside, also if they wrap. */
static void sums(RdmaConn *conn) {
    char buffer[64];
    CHECK(rdmaConnReadOwn(conn, RDMA_BUFFER_LEN - 8, buffer, 8) == RDMA_OK);
    CHECK(rdmaConnReadOwn(conn, RDMA_BUFFER_LEN - 7, buffer, 8) == RDMA_ERR);
    CHECK(rdmaConnReadOwn(conn, 0, buffer, 2 * RDMA_BUFFER_LEN) == RDMA_ERR);
    CHECK(rdmaConnReadOwn(conn, SIZE_MAX, buffer, 8) == RDMA_ERR);
    CHECK(rdmaConnWriteOwn(conn, SIZE_MAX - 3, buffer, 8) == RDMA_ERR);
    CHECK(rdmaConnWriteOwn(conn, 8, buffer, SIZE_MAX - 3) == RDMA_ERR);
    CHECK(rdmaConnWrite(conn, buffer, SIZE_MAX) == (size_t)-1);
    CHECK(rdmaConnSend(conn, buffer, SIZE_MAX) == (size_t)-1);
    /* Memory below 4 GiB: an address and a length of 32 bits wrap back into it. */
    uint32_t lkey, rkey;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT;
    void *low = mmap(NULL, 4096, PROT_READ | PROT_WRITE, flags, -1, 0);
    CHECK(low != MAP_FAILED && (uintptr_t)low < UINT32_MAX - 8);
    CHECK(rdmaConnRegister(conn, low, 4096, &lkey, &rkey) == RDMA_OK);
    uint32_t past = (uint32_t)(uintptr_t)low + 8;
    CHECK(rdmaSyncWriteSignaled(conn, UINT64_MAX, lkey, 0, 0, past) == RDMA_ERR);
    CHECK(strstr(rdmaLastError(), "no memory is registered") != NULL);
    CHECK(rdmaSyncReadSignaled(conn, UINT64_MAX, lkey, 0, 0, past) == RDMA_ERR);
    CHECK(strstr(rdmaLastError(), "no memory is registered") != NULL);
    CHECK(rdmaConnRegister(conn, low, SIZE_MAX, &lkey, &rkey) == RDMA_ERR);
    CHECK(rdmaConnRegister(conn, low, 8, NULL, &rkey) == RDMA_ERR);
}

static int client(char *ip, int port) {
    RdmaConn *conn = rdmaConn();
    CHECK(conn != NULL);
    CHECK(rdmaConnSend(conn, "too early", 9) == (size_t)-1);
    CHECK(rdmaConnect(conn, ip, port) == RDMA_OK);

    /* A message, and one with a number. */
    char buffer[64] = {0};
    CHECK(rdmaConnSend(conn, "hello", 5) == 5);
    CHECK(rdmaConnRecv(conn, buffer, sizeof buffer) == 5 && memcmp(buffer, "hello", 5) == 0);
    CHECK(rdmaConnImm(conn) == 1);
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
    CHECK(rdmaPAWriteSignaled(conn, addr, lkey, 0, 8) == RDMA_ERR);
    CHECK(strstr(rdmaLastError(), "physical") != NULL);
    CHECK(rdmaPAReadSignaled(conn, addr, lkey, 0, 8) == RDMA_ERR);
    CHECK(rdmaPASyncWriteSignaled(conn, addr, lkey, 0, 8) == RDMA_ERR);
    CHECK(rdmaPASyncReadSignaled(conn, addr, lkey, 0, 8) == RDMA_ERR);
    CHECK(rdmaConnSend(NULL, "x", 1) == (size_t)-1);
    sums(conn);

    rdmaConnClose(conn);
    /* What is closed is an error, and is not looked at. */
    CHECK(rdmaConnSend(conn, "x", 1) == (size_t)-1 && rdmaConnect(conn, ip, port) == RDMA_ERR);
    rdmaConnClose(conn);
    rdmaConnClose(NULL);
    rdmaConnClose((RdmaConn *)buffer);
    CHECK(strstr(rdmaLastError(), "no handle") != NULL);
    rdmaServerRelease((RdmaListener *)buffer);
    CHECK(rdmaServerStart((RdmaListener *)conn) == RDMA_ERR);
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
    fprintf(stderr, "usage: snow server IP | client IP PORT\n");
    return 2;
}
