/* NETLINK_RDMA as a program without iproute2 uses it. It says what is wrong, or that all is
 * fine. */
#include "verbs.h"

#include <linux/netlink.h>
#include <poll.h>
#include <rdma/rdma_netlink.h>
#include <sys/socket.h>

static int list_devices(int fd, void (*send_request)(int, const void *, size_t)) {
    struct nlmsghdr request = {.nlmsg_len = sizeof request, .nlmsg_seq = 7,
                               .nlmsg_type = RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_GET),
                               .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP};
    send_request(fd, &request, sizeof request);
    for (int found = 0;;) {
        char answer[8192];
        struct pollfd readable = {.fd = fd, .events = POLLIN};
        CHECK(poll(&readable, 1, 10000) == 1);
        ssize_t length = recv(fd, answer, sizeof answer, 0);
        CHECK(length > 0);
        for (struct nlmsghdr *at = (void *)answer; NLMSG_OK(at, length); at = NLMSG_NEXT(at, length)) {
            CHECK(at->nlmsg_seq == 7);
            if (at->nlmsg_type == NLMSG_DONE)
                return found;
            CHECK(at->nlmsg_type == request.nlmsg_type);
            found++;
        }
    }
}

static void by_send(int fd, const void *bytes, size_t length) {
    CHECK(send(fd, bytes, length, 0) == (ssize_t)length);
}
static void by_write(int fd, const void *bytes, size_t length) {
    CHECK(write(fd, bytes, length) == (ssize_t)length);
}
static void by_sendto(int fd, const void *bytes, size_t length) {
    struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
    CHECK(sendto(fd, bytes, length, 0, (struct sockaddr *)&kernel, sizeof kernel) == (ssize_t)length);
}
static void by_sendmsg(int fd, const void *bytes, size_t length) {
    struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
    struct iovec piece = {(void *)bytes, length};
    struct msghdr message = {.msg_name = &kernel, .msg_namelen = sizeof kernel, .msg_iov = &piece, .msg_iovlen = 1};
    CHECK(sendmsg(fd, &message, 0) == (ssize_t)length);
}

int main(void) {
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_RDMA);
    struct sockaddr_nl own = {.nl_family = AF_NETLINK};
    socklen_t length = sizeof own;
    CHECK(fd >= 0 && !bind(fd, (struct sockaddr *)&own, sizeof own));
    CHECK(list_devices(fd, by_send) == 2 && list_devices(fd, by_write) == 2);
    CHECK(list_devices(fd, by_sendto) == 2 && list_devices(fd, by_sendmsg) == 2);
    /* Another process cannot put answers there. */
    CHECK(!getsockname(fd, (struct sockaddr *)&own, &length) && own.nl_pid);
    int stranger = socket(AF_NETLINK, SOCK_RAW, NETLINK_USERSOCK);
    CHECK(stranger >= 0);
    CHECK(sendto(stranger, "forged", 6, 0, (struct sockaddr *)&own, sizeof own) < 0 && errno == ECONNREFUSED);
    /* A descriptor that stands for something else is left alone. */
    int ends[2];
    CHECK(!close(fd) && !socketpair(AF_UNIX, SOCK_DGRAM, 0, ends));
    CHECK(send(ends[0], "x", 1, 0) == 1 && write(ends[1], "y", 1) == 1);
    puts("fine");
    return 0;
}
