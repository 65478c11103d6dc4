/* Every call of the library's own: what it does, and what it refuses. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "check.h"

/* The end of a page behind which nothing is mapped. */
static char *edge(void) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED);
    CHECK(mprotect(pages + page, page, PROT_NONE) == 0);
    return pages + page;
}

static void messages(struct pair *p) {
    char buffer[64];
    roce_connection a = p->client, b = p->server;
    CHECK(roce_recv(b, buffer, sizeof buffer, 0) == ROCE_ETIMEDOUT);
    CHECK(roce_next(b, 10) == ROCE_ETIMEDOUT);
    CHECK(roce_send(a, "hello", 5, SOON) == ROCE_OK);
    CHECK(roce_send(a, NULL, 0, SOON) == ROCE_OK);
    CHECK(roce_next(b, SOON) == 5);
    /* A message that does not fit stays the next one. */
    CHECK(roce_recv(b, buffer, 4, SOON) == ROCE_ETOOLONG && strstr(roce_last_error(), "5 bytes"));
    CHECK(roce_recv(b, NULL, 5, SOON) == ROCE_EINVAL);
    CHECK(roce_recv(b, edge(), 5, SOON) == ROCE_EFAULT);
    CHECK(roce_recv(b, buffer, 5, 0) == 5 && memcmp(buffer, "hello", 5) == 0);
    CHECK(roce_recv(b, NULL, 0, SOON) == 0);

    size_t large = 3000000;
    char *many = malloc(large), *back = malloc(large);
    for (size_t i = 0; i < large; i++) {
        many[i] = (char)(i * 7 >> 3);
    }
    CHECK(roce_send(b, many, large, SOON) == ROCE_OK);
    CHECK(roce_next(a, SOON) == (int64_t)large);
    CHECK(roce_recv(a, back, large, SOON) == (int64_t)large && memcmp(many, back, large) == 0);
    free(many);
    free(back);

    CHECK(roce_send(a, NULL, 1, SOON) == ROCE_EINVAL);
    CHECK(roce_send(a, edge(), 1, SOON) == ROCE_EFAULT);
    CHECK(roce_send(a, edge() - 3, 4, SOON) == ROCE_EFAULT);
    CHECK(roce_send(a, edge() - 3, 3, SOON) == ROCE_OK && roce_recv(b, buffer, 3, SOON) == 3);
    CHECK(roce_send(a, buffer, (size_t)1 << 40, SOON) == ROCE_ETOOLONG);
    CHECK(roce_send(a, buffer, SIZE_MAX, SOON) == ROCE_ETOOLONG);
    /* It would not fit into the addresses. */
    CHECK(roce_send(a, (void *)(UINTPTR_MAX - 7), 64, SOON) == ROCE_EINVAL);
    CHECK(roce_send(a, (void *)(UINTPTR_MAX - 7), 4, SOON) == ROCE_EFAULT);
}

static void addresses(struct pair *p) {
    char own[64], peer[64], cut[4];
    CHECK(roce_local_address(p->client, own, sizeof own) > 0);
    CHECK(roce_peer_address(p->server, peer, sizeof peer) > 0);
    CHECK(strncmp(own, "127.23.0.2:", 11) == 0 && strncmp(peer, "127.23.0.2:", 11) == 0);
    int len = roce_peer_address(p->server, cut, sizeof cut);
    CHECK(len == (int)strlen(peer) && strcmp(cut, "127") == 0);
    CHECK(roce_peer_address(p->server, NULL, 0) == len);
    CHECK(roce_peer_address(p->server, NULL, 1) == ROCE_EINVAL);
    CHECK(roce_peer_address(p->server, edge() - 2, 8) == ROCE_EFAULT);
    CHECK(roce_peer_address(p->listener, own, sizeof own) == ROCE_EHANDLE);
}

static void memory(struct pair *p) {
    static uint64_t words[512];
    roce_connection a = p->client, b = p->server;
    struct roce_remote r, wrong;
    char bytes[64];
    CHECK(roce_lookup(a, 7, &r, SOON) == ROCE_ENOTFOUND);
    CHECK(roce_publish(b, 7, NULL, 8, ROCE_READ) == ROCE_EINVAL);
    CHECK(roce_publish(b, 7, words, SIZE_MAX, ROCE_READ) == ROCE_EINVAL);
    CHECK(roce_publish(b, 7, words, sizeof words, 0) == ROCE_EINVAL);
    CHECK(roce_publish(b, 7, words, sizeof words, 8) == ROCE_EINVAL);
    CHECK(roce_publish(b, 7, words, sizeof words, -1) == ROCE_EINVAL);
    int all = ROCE_READ | ROCE_WRITE | ROCE_ATOMIC;
    CHECK(roce_publish(b, 7, words, sizeof words, all) == ROCE_OK);
    CHECK(roce_lookup(a, 7, NULL, SOON) == ROCE_EINVAL);
    CHECK(roce_lookup(a, 7, &r, SOON) == ROCE_OK && r.len == sizeof words);

    CHECK(roce_write(a, &r, 8, "written", 7, SOON) == ROCE_OK);
    CHECK(memcmp(words + 1, "written", 7) == 0);
    CHECK(roce_read(a, &r, 9, bytes, 3, SOON) == ROCE_OK && memcmp(bytes, "rit", 3) == 0);
    CHECK(roce_read(a, &r, sizeof words, bytes, 0, SOON) == ROCE_OK);
    /* What is not within, also if the sum wraps. */
    CHECK(roce_read(a, &r, sizeof words, bytes, 1, SOON) == ROCE_ERANGE);
    CHECK(roce_read(a, &r, UINT64_MAX, bytes, 8, SOON) == ROCE_ERANGE);
    CHECK(roce_read(a, &r, 8, bytes, SIZE_MAX - 3, SOON) == ROCE_ERANGE);
    CHECK(roce_write(a, &r, UINT64_MAX - 6, bytes, 7, SOON) == ROCE_ERANGE);
    CHECK(roce_write(a, &r, 0, bytes, SIZE_MAX, SOON) == ROCE_ERANGE);
    CHECK(roce_write(a, NULL, 0, bytes, 1, SOON) == ROCE_EINVAL);
    CHECK(roce_write(a, &r, 0, NULL, 1, SOON) == ROCE_EINVAL);
    CHECK(roce_write(a, &r, 0, edge(), 1, SOON) == ROCE_EFAULT);
    CHECK(roce_read(a, &r, 0, NULL, 1, SOON) == ROCE_EINVAL);
    CHECK(roce_read(a, &r, 0, edge(), 1, SOON) == ROCE_EFAULT);
    CHECK(roce_read(a, (void *)edge(), 0, bytes, 1, SOON) == ROCE_EFAULT);

    uint64_t before;
    CHECK(roce_fetch_add(a, &r, 16, 5, &before, SOON) == ROCE_OK && before == 0);
    CHECK(roce_compare_swap(a, &r, 16, 5, 9, &before, SOON) == ROCE_OK && before == 5);
    CHECK(roce_compare_swap(a, &r, 16, 5, 11, NULL, SOON) == ROCE_OK && words[2] == 9);
    CHECK(roce_fetch_add(a, &r, 4, 1, &before, SOON) == ROCE_EINVAL);
    CHECK(roce_fetch_add(a, &r, sizeof words - 4, 1, &before, SOON) == ROCE_ERANGE);
    CHECK(roce_fetch_add(a, &r, 16, 1, (void *)edge(), SOON) == ROCE_EFAULT && words[2] == 10);

    /* Each number is one of at most 64, and replaces what it had. */
    for (uint64_t id = 100; id < 163; id++) {
        CHECK(roce_publish(b, id, words, 8, ROCE_READ) == ROCE_OK);
    }
    CHECK(roce_publish(b, 163, words, 8, ROCE_READ) == ROCE_ENOMEM);
    CHECK(roce_publish(b, 162, words, 16, ROCE_READ) == ROCE_OK);
    CHECK(roce_lookup(a, 162, &wrong, SOON) == ROCE_OK && wrong.len == 16);
    CHECK(roce_unpublish(b, 100) == ROCE_OK && roce_unpublish(b, 100) == ROCE_ENOTFOUND);
    CHECK(roce_lookup(a, 100, &wrong, SOON) == ROCE_ENOTFOUND);
    CHECK(roce_publish(b, 163, words, 8, ROCE_READ) == ROCE_OK);

    /* Withdrawn memory is not touched: the operation ends the connection. */
    CHECK(roce_unpublish(b, 7) == ROCE_OK);
    CHECK(roce_write(a, &r, 8, "WRITTEN", 7, SOON) == ROCE_ELOST);
    CHECK(memcmp(words + 1, "written", 7) == 0);
    CHECK(roce_send(a, "x", 1, SOON) == ROCE_ELOST);
}

static void rights(struct pair *p) {
    static char text[8] = "read me";
    struct roce_remote r;
    char bytes[8];
    CHECK(roce_publish(p->server, 1, text, sizeof text, ROCE_READ) == ROCE_OK);
    CHECK(roce_lookup(p->client, 1, &r, SOON) == ROCE_OK);
    CHECK(roce_read(p->client, &r, 0, bytes, 8, SOON) == ROCE_OK && strcmp(bytes, text) == 0);
    CHECK(roce_write(p->client, &r, 0, "X", 1, SOON) == ROCE_ELOST && text[0] == 'r');
}

/* An end of messages, and then of the connection. */
static void ends(struct pair *p) {
    char buffer[8];
    CHECK(roce_send(p->client, "last", 4, SOON) == ROCE_OK);
    CHECK(roce_finish(p->client, SOON) == ROCE_OK);
    CHECK(roce_send(p->client, "x", 1, SOON) == ROCE_EFINISHED);
    CHECK(roce_recv(p->server, buffer, 8, SOON) == 4);
    CHECK(roce_recv(p->server, buffer, 8, SOON) == ROCE_ECLOSED);
    CHECK(roce_next(p->server, SOON) == ROCE_ECLOSED);
    CHECK(roce_send(p->server, "answer", 6, SOON) == ROCE_OK);
    CHECK(roce_recv(p->client, buffer, 8, SOON) == 6);
}

/* Whatever a handle is, a call with it returns. */
static void handles(struct pair *p) {
    char buffer[8];
    struct roce_remote r;
    memset(&r, 0, sizeof r);
    int64_t bad[] = {0, -1, 1, 7, INT64_MAX, INT64_MIN, p->devices[0], p->listener,
                     p->client ^ ((int64_t)1 << 24), p->client | ((int64_t)1 << 60)};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int64_t h = bad[i];
        CHECK(roce_send(h, "x", 1, 0) == ROCE_EHANDLE);
        CHECK(roce_recv(h, buffer, 8, 0) == ROCE_EHANDLE && roce_next(h, 0) == ROCE_EHANDLE);
        CHECK(roce_finish(h, 0) == ROCE_EHANDLE && roce_unpublish(h, 0) == ROCE_EHANDLE);
        CHECK(roce_publish(h, 0, buffer, 8, ROCE_READ) == ROCE_EHANDLE);
        CHECK(roce_lookup(h, 0, &r, 0) == ROCE_EHANDLE);
        CHECK(roce_read(h, &r, 0, buffer, 0, 0) == ROCE_EHANDLE);
        CHECK(roce_write(h, &r, 0, buffer, 0, 0) == ROCE_EHANDLE);
        CHECK(roce_fetch_add(h, &r, 0, 0, NULL, 0) == ROCE_EHANDLE);
        CHECK(roce_compare_swap(h, &r, 0, 0, 0, NULL, 0) == ROCE_EHANDLE);
        CHECK(roce_peer_address(h, buffer, 8) == ROCE_EHANDLE);
        if (h != p->listener) {
            CHECK(roce_accept(h, 0) == ROCE_EHANDLE);
            CHECK(roce_local_address(h, buffer, 8) == ROCE_EHANDLE);
        }
        if (h != p->devices[0]) {
            CHECK(roce_set(h, ROCE_RING, 4096) == ROCE_EHANDLE);
        }
        if (h != p->devices[0] && h != p->listener) {
            CHECK(roce_close(h) == ROCE_EHANDLE);
        }
        if (h != 0 && h != p->devices[0]) {
            CHECK(roce_listen(h, "127.23.0.1:0") == ROCE_EHANDLE);
            CHECK(roce_connect(h, "127.23.0.1:1", 0) == ROCE_EHANDLE);
        }
    }
    /* A place that has a new object is not the old handle's. */
    roce_device old = roce_open(NULL);
    CHECK(old > 0 && roce_close(old) == ROCE_OK);
    roce_device young = roce_open(NULL);
    CHECK(young > 0 && young != old && (young & 0xffffff) == (old & 0xffffff));
    CHECK(roce_set(old, ROCE_RING, 4096) == ROCE_EHANDLE && roce_close(old) == ROCE_EHANDLE);
    CHECK(strstr(roce_last_error(), "closed") != NULL);
    CHECK(roce_close(young) == ROCE_OK);
    /* Handles of SnowRDMA are closed by its calls. */
    RdmaConn *conn = rdmaConn();
    CHECK(conn != NULL && roce_close((int64_t)(intptr_t)conn) == ROCE_EHANDLE);
    rdmaConnClose(conn);
    rdmaConnClose(conn);
    CHECK(strstr(rdmaLastError(), "closed") != NULL);
}

static void devices(void) {
    char name[64];
    int loopback = 0;
    unsigned count = 0;
    while (roce_device_name(count, name, sizeof name) > 0) {
        loopback |= strcmp(name, "soft:lo") == 0;
        count++;
    }
    CHECK(count > 0 && loopback);
    CHECK(roce_device_name(count, name, sizeof name) == ROCE_ENOTFOUND);
    CHECK(roce_device_name(UINT32_MAX, name, sizeof name) == ROCE_ENOTFOUND);
    CHECK(roce_open("nonsense") < 0 && roce_open("") < 0 && roce_open("udp:192.0.2.77") < 0);
    CHECK(roce_open("verbs:there_is_none") == ROCE_EDEVICE);
    /* Another NIC of this user shares the address; a program that does not share has it alone. */
    roce_device second = roce_open("udp:127.23.0.1");
    CHECK(second > 0 && roce_close(second) == ROCE_OK);
    struct sockaddr_in taken = {.sin_family = AF_INET, .sin_port = htons(4791)};
    CHECK(inet_pton(AF_INET, "127.23.0.77", &taken.sin_addr) == 1);
    int holder = socket(AF_INET, SOCK_DGRAM, 0);
    CHECK(holder >= 0 && bind(holder, (struct sockaddr *)&taken, sizeof taken) == 0);
    CHECK(roce_open("udp:127.23.0.77") == ROCE_EINUSE);
    close(holder);
    char *string = edge() - 4;
    memcpy(string, "udp:", 4);
    CHECK(roce_open(string) == ROCE_EFAULT);
    char *endless = malloc(5000);
    memset(endless, 'x', 5000);
    CHECK(roce_open(endless) == ROCE_EINVAL);
    free(endless);
    CHECK(roce_open("udp:\xff\xfe") == ROCE_EINVAL);

    roce_device any = roce_open(NULL);
    CHECK(roce_set(any, ROCE_RING, 65536) == ROCE_OK && roce_set(any, ROCE_RING, 1) == ROCE_EINVAL);
    CHECK(roce_set(any, ROCE_RING, UINT64_MAX) == ROCE_EINVAL);
    CHECK(roce_set(any, ROCE_MESSAGE_MAX, 0) == ROCE_EINVAL);
    CHECK(roce_set(any, ROCE_KEEPALIVE_MS, 0) == ROCE_EINVAL);
    CHECK(roce_set(any, ROCE_KEEPALIVE_MS, UINT64_MAX) == ROCE_OK);
    CHECK(roce_set(any, ROCE_LINGER_MS, UINT64_MAX) == ROCE_OK);
    CHECK(roce_set(any, ROCE_RETRIES, 8) == ROCE_EINVAL && roce_set(any, 0, 1) == ROCE_EINVAL);
    CHECK(roce_set(ROCE_AUTO, ROCE_RING, 4096) == ROCE_EHANDLE);
    CHECK(roce_connect(any, "127.23.0.1:9", 300) < 0);
    CHECK(roce_connect(any, "not an address", SOON) == ROCE_EADDRESS);
    CHECK(roce_connect(any, NULL, SOON) == ROCE_EINVAL);
    CHECK(roce_listen(any, "192.0.2.77:0") < 0 && roce_listen(any, "127.23.0.1") == ROCE_EADDRESS);
    CHECK(roce_close(any) == ROCE_OK);
}

/* Calls that wait in one thread end when another closes the handle. */
static void *waits_to_accept(void *listener) {
    CHECK(roce_accept(*(roce_listener *)listener, ROCE_FOREVER) == ROCE_EHANDLE);
    return NULL;
}

static void *waits_to_receive(void *connection) {
    char buffer[8];
    roce_connection c = *(roce_connection *)connection;
    CHECK(roce_recv(c, buffer, 8, ROCE_FOREVER) == ROCE_EHANDLE);
    return NULL;
}

static void closes_elsewhere(struct pair *p) {
    pthread_t threads[3];
    CHECK(pthread_create(&threads[0], NULL, waits_to_accept, &p->listener) == 0);
    CHECK(pthread_create(&threads[1], NULL, waits_to_receive, &p->client) == 0);
    CHECK(pthread_create(&threads[2], NULL, waits_to_receive, &p->client) == 0);
    usleep(100000);
    CHECK(roce_close(p->client) == ROCE_OK && roce_close(p->listener) == ROCE_OK);
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
    }
    CHECK(roce_close(p->server) == ROCE_OK);
}

static void reconnect(struct pair *p) {
    roce_close(p->client);
    roce_close(p->server);
    connect_pair(p);
}

int main(void) {
    CHECK(strcmp(roce_version(), VERSION) == 0);
    CHECK(strcmp(roce_last_error(), "") == 0);
    CHECK(strcmp(roce_strerror(ROCE_ELOST), "the connection is lost") == 0);
    CHECK(strcmp(roce_strerror(-1000), "there is no such error") == 0);
    struct pair p = open_pair(0, NULL);
    messages(&p);
    addresses(&p);
    devices();
    handles(&p);
    memory(&p);
    reconnect(&p);
    rights(&p);
    reconnect(&p);
    ends(&p);
    reconnect(&p);
    closes_elsewhere(&p);
    CHECK(roce_close(p.devices[0]) == ROCE_OK && roce_close(p.devices[1]) == ROCE_OK);
    /* The address is free when all is closed. */
    roce_device again = roce_open("udp:127.23.0.1");
    CHECK(again > 0 && roce_close(again) == ROCE_OK);
    puts("all is well");
    return 0;
}
