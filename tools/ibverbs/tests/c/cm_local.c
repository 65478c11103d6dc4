/* Addresses that mean this host, over librdmacm in one program: loopback addresses that no NIC
 * has are bound as wildcards, and the unspecified address and loopback are reached. It says what
 * is wrong, or that all is fine.
 *
 * cm_local OWN: the program has one NIC, at the loopback address OWN. */
#include "cm.h"

static struct rdma_event_channel *channel;

static void add_qp(struct rdma_cm_id *id) {
    struct ibv_qp_init_attr attr = {
        .qp_type = IBV_QPT_RC, .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1}};
    CHECK(!rdma_create_qp(id, NULL, &attr));
}

/* A listener that is bound to `bound`, and a client that wants `destination`. */
static void connects(const char *bound, const char *destination) {
    struct rdma_cm_id *listener = new_id(channel), *client = new_id(channel);
    CHECK(!rdma_bind_addr(listener, address(bound, 7174)) && !listener->verbs);
    CHECK(ntohs(rdma_get_src_port(listener)) == 7174);
    CHECK(!rdma_listen(listener, 1));
    CHECK(!rdma_resolve_addr(client, NULL, address(destination, 7174), 2000));
    CHECK(expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED) == client && client->verbs);
    CHECK(!rdma_resolve_route(client, 2000));
    CHECK(expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED) == client);
    add_qp(client);
    struct rdma_conn_param param = {.retry_count = 7};
    CHECK(!rdma_connect(client, &param));
    struct rdma_cm_id *server = expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
    add_qp(server);
    CHECK(!rdma_accept(server, &param));
    struct rdma_cm_id *first = expect(channel, RDMA_CM_EVENT_ESTABLISHED), *second = expect(channel, RDMA_CM_EVENT_ESTABLISHED);
    CHECK((first == client && second == server) || (first == server && second == client));
    rdma_destroy_qp(client);
    rdma_destroy_qp(server);
    CHECK(!rdma_destroy_id(client) && !rdma_destroy_id(server) && !rdma_destroy_id(listener));
}

int main(int count, char **words) {
    CHECK(count == 2 && (channel = rdma_create_event_channel()));
    /* An address that the NIC has is that NIC's. */
    struct rdma_cm_id *own = new_id(channel);
    CHECK(!rdma_bind_addr(own, address(words[1], 7174)) && own->verbs && !rdma_listen(own, 1));
    /* A wildcard conflicts with it. */
    struct rdma_cm_id *other = new_id(channel);
    CHECK(rdma_bind_addr(other, address("127.0.0.9", 7174)) && errno == EADDRNOTAVAIL);
    CHECK(!rdma_destroy_id(own) && !rdma_destroy_id(other));
    /* An address of another network is no wildcard. */
    other = new_id(channel);
    CHECK(rdma_bind_addr(other, address("192.0.2.1", 7174)) && errno == ENODEV && !rdma_destroy_id(other));
    connects("0.0.0.0", words[1]);
    connects("127.0.0.9", words[1]);
    connects("127.0.0.9", "0.0.0.0");
    connects("127.0.0.9", "::");
    connects("::1", "::1");
    puts("fine");
    return 0;
}
