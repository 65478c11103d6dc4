/* The device of librdmacm as a file: what poll, dup, fcntl, fork, close and cancellation do to
 * it, and what it says to commands that make no sense. It connects to itself. It says what is
 * wrong, or that all is fine. */
#define _GNU_SOURCE
#include "verbs.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_user_cm.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define DEVICE "/dev/infiniband/rdma_cm"
#define FAILS(what, code) CHECK((errno = 0, (what) == -1) && errno == (code))

static const char *own;

/* Writes a command; what write() says. */
static long command(int fd, int number, const void *body, size_t len, size_t room)
{
    char bytes[512];
    struct rdma_ucm_cmd_hdr header = {.cmd = number, .in = len, .out = room};
    memcpy(bytes, &header, sizeof header);
    memcpy(bytes + sizeof header, body, len);
    long written = write(fd, bytes, sizeof header + len);
    CHECK(written == -1 || written == (long)(sizeof header + len));
    return written == -1 ? -1 : 0;
}
#define COMMAND(fd, number, body, room) command(fd, RDMA_USER_CM_CMD_##number, &(body), sizeof(body), room)

static int open_channel(void)
{
    int fd = open(DEVICE, O_RDWR | O_CLOEXEC);
    CHECK(fd >= 0);
    return fd;
}

static int readable(int fd)
{
    struct pollfd poller = {.fd = fd, .events = POLLIN | POLLOUT};
    int count = poll(&poller, 1, 0);
    CHECK(count == (poller.revents != 0) && !(poller.revents & ~POLLIN));
    return count;
}

static uint32_t create_id(int fd, uint64_t uid)
{
    struct rdma_ucm_create_id_resp answer = {~0u};
    struct rdma_ucm_create_id body = {.uid = uid, .response = (uintptr_t)&answer, .ps = RDMA_PS_TCP};
    CHECK(!COMMAND(fd, CREATE_ID, body, sizeof answer));
    return answer.id;
}

static int destroy_id(int fd, uint32_t id)
{
    struct rdma_ucm_destroy_id_resp answer;
    struct rdma_ucm_destroy_id body = {.response = (uintptr_t)&answer, .id = id};
    return COMMAND(fd, DESTROY_ID, body, sizeof answer) ? -1 : (int)answer.events_reported;
}

static struct sockaddr_in address(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    CHECK(inet_pton(AF_INET, own, &address.sin_addr) == 1);
    return address;
}

static long bind_id(int fd, uint32_t id, int port)
{
    struct sockaddr_in to = address(port);
    struct rdma_ucm_bind body = {.id = id, .addr_size = sizeof to};
    memcpy(&body.addr, &to, sizeof to);
    return COMMAND(fd, BIND, body, 0);
}

static uint32_t listener(int fd, int port)
{
    uint32_t id = create_id(fd, 1000 + port);
    CHECK(!bind_id(fd, id, port));
    struct rdma_ucm_listen body = {.id = id};
    CHECK(!COMMAND(fd, LISTEN, body, 0));
    return id;
}

static long get_event(int fd, struct rdma_ucm_event_resp *event)
{
    struct rdma_ucm_get_event body = {.response = (uintptr_t)event};
    return COMMAND(fd, GET_EVENT, body, sizeof *event);
}

static struct rdma_ucm_event_resp next_event(int fd, uint32_t kind)
{
    struct rdma_ucm_event_resp event;
    CHECK(!get_event(fd, &event));
    if (event.event != kind)
        fprintf(stderr, "event %u with status %d, not %u\n", event.event, (int)event.status, kind);
    CHECK(event.event == kind);
    return event;
}

static void resolve(int fd, uint32_t id, int port)
{
    struct sockaddr_in to = address(port);
    struct rdma_ucm_resolve_addr body = {.id = id, .timeout_ms = 2000, .dst_size = sizeof to};
    memcpy(&body.dst_addr, &to, sizeof to);
    CHECK(!COMMAND(fd, RESOLVE_ADDR, body, 0));
}

/* An id that has sent a request to this port. */
static uint32_t connecting(int fd, int port)
{
    uint32_t id = create_id(fd, 2000 + port);
    resolve(fd, id, port);
    CHECK(next_event(fd, 0).uid == (uint64_t)2000 + port);
    struct rdma_ucm_resolve_route route = {.id = id, .timeout_ms = 2000};
    CHECK(!COMMAND(fd, RESOLVE_ROUTE, route, 0));
    next_event(fd, 2);
    struct rdma_ucm_connect body = {.conn_param = {.qp_num = 0x123, .valid = 1}, .id = id};
    CHECK(!COMMAND(fd, CONNECT, body, 0));
    return id;
}

static void nonsense(void)
{
    int fd = open_channel(), other = open_channel();
    struct stat stat;
    CHECK(!fstat(fd, &stat) && S_ISCHR(stat.st_mode) && stat.st_rdev);
    CHECK(!readable(fd));

    struct rdma_ucm_cmd_hdr header = {.cmd = 0};
    FAILS(write(fd, &header, 7), EINVAL);
    void *volatile nowhere = (void *)8;
    FAILS(write(fd, nowhere, 8), EFAULT);
    header.cmd = 23;
    FAILS(write(fd, &header, 8), EINVAL);
    header.cmd = RDMA_USER_CM_CMD_GET_OPTION;
    FAILS(write(fd, &header, 8), ENOSYS);
    header.in = 1;
    FAILS(write(fd, &header, 8), EINVAL);

    struct rdma_ucm_create_id create = {.response = 8, .ps = RDMA_PS_TCP};
    FAILS(COMMAND(fd, CREATE_ID, create, 3), ENOSPC);
    FAILS(COMMAND(fd, CREATE_ID, create, 4), EFAULT);
    create.ps = 0x9999;
    FAILS(COMMAND(fd, CREATE_ID, create, 4), EINVAL);
    uint32_t id = create_id(fd, 1);
    FAILS(destroy_id(other, id), EINVAL);
    FAILS(destroy_id(fd, ~id), ENOENT);
    struct rdma_ucm_set_option option = {.id = id, .optval = 8, .optlen = 1};
    FAILS(COMMAND(fd, SET_OPTION, option, 0), EFAULT);
    option.optlen = ~0u;
    FAILS(COMMAND(fd, SET_OPTION, option, 0), EINVAL);
    struct rdma_ucm_migrate_id migrate = {.id = id, .fd = 12345};
    FAILS(COMMAND(other, MIGRATE_ID, migrate, 4), ENOENT);
    migrate.fd = STDIN_FILENO;
    FAILS(COMMAND(other, MIGRATE_ID, migrate, 4), EINVAL);
    CHECK(!bind_id(fd, id, 0));
    FAILS(bind_id(fd, id, 0), EINVAL);
    CHECK(destroy_id(fd, id) == 0);
    FAILS(destroy_id(fd, id), ENOENT);

    struct rdma_ucm_event_resp event;
    CHECK(!fcntl(fd, F_SETFL, O_NONBLOCK));
    FAILS(get_event(fd, &event), EAGAIN);
    int direct = open(DEVICE, O_RDWR | O_NONBLOCK);
    CHECK(direct >= 0);
    FAILS(get_event(direct, &event), EAGAIN);
    CHECK(!close(fd) && !close(other) && !close(direct));
}

/* Copies of a descriptor, and numbers that mean something else now. */
static void copies(void)
{
    int server = open_channel(), client = open_channel();
    uint32_t id = listener(server, 7001), from = connecting(client, 7001);
    int copy = dup(server), epoll = epoll_create1(0);
    struct epoll_event told = {.events = EPOLLIN | EPOLLOUT};
    CHECK(copy >= 0 && epoll >= 0 && !epoll_ctl(epoll, EPOLL_CTL_ADD, copy, &told));
    CHECK(!close(server));
    CHECK(epoll_wait(epoll, &told, 1, 5000) == 1 && told.events == EPOLLIN);
    struct stat stat;
    CHECK(!fstat(copy, &stat) && S_ISCHR(stat.st_mode));
    /* The old number is a file like any other now. */
    int file = open("/dev/null", O_RDWR);
    CHECK(file >= 0 && dup2(file, server) == server && write(server, "text", 4) == 4);
    if (file != server)
        CHECK(!close(file));
    struct rdma_ucm_event_resp request = next_event(copy, 4);
    CHECK(request.uid == 8001 && request.param.conn.qp_num == 0x123 && request.param.conn.private_data_len == 56);
    CHECK(!readable(copy) && epoll_wait(epoll, &told, 1, 0) == 0);
    struct rdma_ucm_reject reject = {.id = request.id, .private_data_len = 2, .private_data = "no"};
    CHECK(!COMMAND(copy, REJECT, reject, 0));
    struct rdma_ucm_event_resp rejected = next_event(client, 8);
    CHECK(rejected.status == 28 && !memcmp(rejected.param.conn.private_data, "no", 3));
    CHECK(destroy_id(copy, request.id) == 0 && destroy_id(copy, id) == 1 && destroy_id(client, from) == 3);
    CHECK(!close(copy) && !close(client) && !close(server) && !close(epoll));
}

/* A command that is written to a number which is a pipe now arrives there. */
static void arrives(int fd, int id, int from)
{
    struct rdma_ucm_destroy_id_resp answer;
    struct rdma_ucm_destroy_id body = {.response = (uintptr_t)&answer, .id = id};
    char bytes[64];
    CHECK(!COMMAND(fd, DESTROY_ID, body, sizeof answer));
    CHECK(read(from, bytes, sizeof bytes) == sizeof(struct rdma_ucm_cmd_hdr) + sizeof body);
}

/* A number that was a channel until it was closed in one way or another, while a copy of it
 * keeps the channel. */
static void reused(void)
{
    int ends[2], fd = open_channel(), copy = dup(fd);
    CHECK(copy >= 0 && !pipe(ends));
    uint32_t id = create_id(fd, 1);
    CHECK(dup2(ends[1], fd) == fd);
    arrives(fd, id, ends[0]);
    CHECK(dup2(copy, fd) == fd && destroy_id(fd, id) == 0);
    id = create_id(fd, 2);
    CHECK(dup3(ends[1], fd, 0) == fd);
    arrives(fd, id, ends[0]);
    CHECK(dup2(copy, fd) == fd && destroy_id(fd, id) == 0);
    id = create_id(fd, 3);
    CHECK(!close_range(fd, fd, 0) && fcntl(ends[1], F_DUPFD, fd) == fd);
    arrives(fd, id, ends[0]);
    CHECK(dup2(copy, fd) == fd && destroy_id(fd, id) == 0);
    id = create_id(fd, 4);
    CHECK(!close(fd) && fcntl(ends[1], F_DUPFD, fd) == fd);
    arrives(fd, id, ends[0]);
    /* By a system call, which the library does not see: a command for an id that is not there. */
    CHECK(dup2(copy, fd) == fd && destroy_id(fd, id) == 0);
    CHECK(syscall(SYS_dup3, ends[1], fd, 0) == fd && write(fd, "text", 4) == 4);
    char text[4];
    CHECK(read(ends[0], text, 4) == 4 && !memcmp(text, "text", 4));
    arrives(fd, id, ends[0]);
    CHECK(!close(fd) && !close(copy) && !close(ends[0]) && !close(ends[1]));
}

/* What closing a file does to the peers of its ids, and destroying an id to its events. */
static void ends(void)
{
    int server = open_channel(), client = open_channel(), third = open_channel();
    listener(server, 7002);
    uint32_t from = connecting(client, 7002);
    struct pollfd poller = {.fd = server, .events = POLLIN};
    CHECK(poll(&poller, 1, 5000) == 1);
    CHECK(!close(server));
    CHECK(next_event(client, 8).status == 28);
    CHECK(destroy_id(client, from) == 3);

    uint32_t id = create_id(client, 1);
    resolve(client, id, 7002);
    CHECK(readable(client));
    struct rdma_ucm_migrate_resp answer;
    struct rdma_ucm_migrate_id migrate = {.response = (uintptr_t)&answer, .id = id, .fd = client};
    CHECK(!COMMAND(third, MIGRATE_ID, migrate, sizeof answer) && answer.events_reported == 0);
    CHECK(!readable(client) && readable(third));
    CHECK(destroy_id(third, id) == 0 && !readable(third));
    CHECK(!close(client) && !close(third));
}

static void *waits(void *fd)
{
    struct rdma_ucm_event_resp event;
    get_event(*(int *)fd, &event);
    return NULL;
}

/* A thread that waits for an event goes on waiting when the file is closed, and can be canceled. */
static void threads(void)
{
    int fd = open_channel();
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, waits, &fd));
    struct timespec soon;
    clock_gettime(CLOCK_REALTIME, &soon);
    soon.tv_nsec += 100000000;
    soon.tv_sec += soon.tv_nsec / 1000000000;
    soon.tv_nsec %= 1000000000;
    void *result = NULL;
    usleep(20000);
    CHECK(!close(fd));
    CHECK(pthread_timedjoin_np(thread, &result, &soon) == ETIMEDOUT);
    CHECK(!pthread_cancel(thread) && !pthread_join(thread, &result) && result == PTHREAD_CANCELED);
}

/* A child is refused what it inherited, and has files of its own. */
static void forks(void)
{
    int fd = open_channel();
    uint32_t id = create_id(fd, 1);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        FAILS(destroy_id(fd, id), ENODEV);
        int fresh = open_channel();
        CHECK(destroy_id(fresh, create_id(fresh, 1)) == 0);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(destroy_id(fd, id) == 0 && !close(fd));
}

/* Files that are closed leave nothing. */
static void leaks(void)
{
    int before = descriptors();
    for (int i = 0; i < 200; i++) {
        int fd = open_channel();
        create_id(fd, i);
        CHECK(!close(fd));
    }
    for (int i = 0; i < 1000 && descriptors() > before; i++) usleep(5000);
    CHECK(descriptors() <= before);
}

static int exit_channel;

/* No event comes, whatever ends meanwhile. */
static void *ask_for_ever(void *unused)
{
    struct rdma_ucm_event_resp event;
    (void)unused;
    for (;;) {
        errno = 0;
        if (get_event(exit_channel, &event) != -1 || errno != EAGAIN) _exit(7);
    }
    return NULL;
}

static void linger(void)
{
    usleep(300 * 1000);
}

/* A thread that asks for events while another one is in exit() gets none, and no error that
 * would make it end the process. */
static void exits(void)
{
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child) {
        /* Handlers run in reverse: this one after the library's, which is registered with the
         * first channel. */
        CHECK(!atexit(linger));
        exit_channel = open(DEVICE, O_RDWR | O_NONBLOCK);
        CHECK(exit_channel >= 0);
        create_id(exit_channel, 1);
        pthread_t thread;
        CHECK(!pthread_create(&thread, NULL, ask_for_ever, NULL));
        usleep(20 * 1000);
        exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
}

int main(int count, char **words)
{
    CHECK(count == 2);
    own = words[1];
    nonsense();
    copies();
    reused();
    ends();
    threads();
    forks();
    exits();
    leaks();
    puts("fine");
    return 0;
}
