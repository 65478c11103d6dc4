/* A listener whose program is slow, a flood of requests from one address, and a request from
 * another: the listener's backlog is bounded, and the flood keeps the other out of it only as
 * long as it takes to forget the flood's oldest. It says what is wrong, or that all is fine.
 *
 * cm_backlog SERVER STRANGER HONEST: the addresses of three NICs of this program. */
#include "cm.h"

#include <fcntl.h>

enum { BACKLOG = 4, FLOOD = 50, PORT = 7174 };

/* Sends a REQ from one address to the server, and leaves it at that. */
static struct rdma_cm_id *request(struct rdma_event_channel *channel, const char *from, const char *to, uint32_t qpn) {
    struct rdma_cm_id *id = new_id(channel);
    struct sockaddr_storage source;
    memcpy(&source, address(from, 0), sizeof source);
    CHECK(!rdma_resolve_addr(id, (struct sockaddr *)&source, address(to, PORT), 2000));
    CHECK(expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED) == id && !rdma_resolve_route(id, 2000));
    CHECK(expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED) == id);
    struct rdma_conn_param param = {.qp_num = qpn, .retry_count = 7};
    CHECK(!rdma_connect(id, &param));
    return id;
}

/* Whether a request of this address is among those that wait, of which there are at most as many
 * as the backlog says. */
static int waits(struct rdma_event_channel *channel, const char *from) {
    int found = 0;
    struct rdma_cm_event *event;
    for (int taken = 0; !rdma_get_cm_event(channel, &event); taken++) {
        CHECK(event->event == RDMA_CM_EVENT_CONNECT_REQUEST);
        struct sockaddr_in *peer = (struct sockaddr_in *)rdma_get_peer_addr(event->id);
        struct sockaddr_in *wanted = (struct sockaddr_in *)address(from, 0);
        if (taken < BACKLOG)
            found |= peer->sin_addr.s_addr == wanted->sin_addr.s_addr;
        rdma_ack_cm_event(event);
    }
    CHECK(errno == EAGAIN);
    return found;
}

int main(int count, char **words) {
    CHECK(count == 4);
    struct rdma_event_channel *listening = rdma_create_event_channel(), *asking = rdma_create_event_channel();
    CHECK(listening && asking && !fcntl(listening->fd, F_SETFL, O_NONBLOCK));
    struct rdma_cm_id *listener = new_id(listening);
    CHECK(!rdma_bind_addr(listener, address(words[1], PORT)) && !rdma_listen(listener, BACKLOG));
    for (int i = 0; i < FLOOD; i++)
        request(asking, words[2], words[1], 1000 + i);
    request(asking, words[3], words[1], 1);
    /* Its datagram takes no longer on any machine; a REQ that was dropped comes once more,
     * within the room that is left. */
    sleep(1);
    CHECK(waits(listening, words[3]));
    puts("fine");
    fflush(stdout);
    _exit(0);
}
