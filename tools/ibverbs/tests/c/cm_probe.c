/* Prints the behavior of librdmacm: some 180 calls and 60 events, with both sides of every
 * connection in this process. It prints the result and error number of each call, each event with
 * its parameters, and after each step the attributes of ids and queue pairs.
 * The output on the kernel's rxe is in testdata/cm/probe.rxe.txt; tools/ibverbs/probe compares it
 * with that on a soft NIC.
 *
 * cm_probe ADDRESS    # address of a device of this host; 192.0.2.77 and 10.9.0.99 must not answer */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static struct rdma_event_channel *servers, *clients;
static const char *own;

/* Calls a function of librdmacm, and prints its result and error number. */
#define CALL(function, ...)                                                                                            \
    ({                                                                                                                 \
        errno = 0;                                                                                                     \
        int result_ = function(__VA_ARGS__);                                                                           \
        printf("  call %s = %d errno %d (%s)\n", #function, result_, result_ ? errno : 0,                              \
               result_ ? strerror(errno) : "");                                                                        \
        result_;                                                                                                       \
    })

static double seconds(void)
{
    static double first;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    double time = now.tv_sec + now.tv_nsec / 1e9;
    if (first == 0)
        first = time;
    return time - first;
}

static struct sockaddr *address(const char *text, int port)
{
    static struct sockaddr_in made;
    made = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, text, &made.sin_addr);
    return (struct sockaddr *)&made;
}

static void print_address(const char *which, struct sockaddr *address)
{
    char text[64];
    if (address->sa_family == AF_INET) {
        struct sockaddr_in *v4 = (void *)address;
        printf(" %s %s:%d", which, inet_ntop(AF_INET, &v4->sin_addr, text, sizeof text), ntohs(v4->sin_port));
    } else
        printf(" %s family %d", which, address->sa_family);
}

static void print_id(const char *when, struct rdma_cm_id *id)
{
    printf("  id %s ps %x qp_type %d port %d verbs %s pd %s", when, id->ps, id->qp_type, id->port_num,
           id->verbs ? ibv_get_device_name(id->verbs->device) : "-", id->pd ? "y" : "n");
    print_address("src", rdma_get_local_addr(id));
    print_address("dst", rdma_get_peer_addr(id));
    printf(" pkey %x paths %d", ntohs(id->route.addr.addr.ibaddr.pkey), id->route.num_paths);
    if (id->route.num_paths) {
        struct ibv_sa_path_rec *path = id->route.path_rec;
        printf(" path[dlid %x slid %x fl %x hop %d tc %d rev %d numb %d pkey %x sl %d mtu %d/%d rate %d/%d plt %d/%d "
               "pref %d]",
               path->dlid, path->slid, ntohl(path->flow_label), path->hop_limit, path->traffic_class,
               path->reversible, path->numb_path, ntohs(path->pkey), path->sl, path->mtu_selector, path->mtu,
               path->rate_selector, path->rate, path->packet_life_time_selector, path->packet_life_time,
               path->preference);
    }
    printf("\n");
}

static void print_qp(const char *when, struct rdma_cm_id *id)
{
    struct ibv_qp_attr attr = {0};
    struct ibv_qp_init_attr init;
    if (ibv_query_qp(id->qp, &attr, 0x1fffff, &init)) {
        printf("  qp %s: errno %d\n", when, errno);
        return;
    }
    printf("  qp %s state %d mtu %d rq_psn %x sq_psn %x dest %x access %x pkey_i %d port %d timeout %d retry %d rnr %d "
           "min_rnr %d rd %d dest_rd %d qkey %x ah global %d sgid_i %d hop %d tc %d fl %x sl %d\n",
           when, attr.qp_state, attr.path_mtu, attr.rq_psn, attr.sq_psn, attr.dest_qp_num, attr.qp_access_flags,
           attr.pkey_index, attr.port_num, attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer,
           attr.max_rd_atomic, attr.max_dest_rd_atomic, attr.qkey, attr.ah_attr.is_global,
           attr.ah_attr.grh.sgid_index, attr.ah_attr.grh.hop_limit, attr.ah_attr.grh.traffic_class,
           attr.ah_attr.grh.flow_label, attr.ah_attr.sl);
}

/* Waits for the next event of a channel, prints and acknowledges it. Returns its id, or NULL. */
static struct rdma_cm_id *event(const char *who, struct rdma_event_channel *channel, int milliseconds)
{
    struct pollfd poller = {.fd = channel->fd, .events = POLLIN};
    if (poll(&poller, 1, milliseconds) <= 0) {
        printf("  %s: no event in %d ms\n", who, milliseconds);
        return NULL;
    }
    struct rdma_cm_event *taken;
    if (rdma_get_cm_event(channel, &taken)) {
        printf("  %s get_cm_event: %s\n", who, strerror(errno));
        return NULL;
    }
    struct rdma_cm_id *id = taken->id;
    printf("  [%7.3f] %s event %s status %d listen_id %s", seconds(), who, rdma_event_str(taken->event),
           taken->status, taken->listen_id ? "set" : "null");
    if (id->qp_type == IBV_QPT_UD) {
        struct rdma_ud_param *ud = &taken->param.ud;
        printf(" ud pdlen %d pd %p qpn %x qkey %x ah[global %d sgid_i %d hop %d tc %d fl %x dlid %x sl %d rate %d "
               "port %d]",
               ud->private_data_len, ud->private_data, ud->qp_num, ud->qkey, ud->ah_attr.is_global,
               ud->ah_attr.grh.sgid_index, ud->ah_attr.grh.hop_limit, ud->ah_attr.grh.traffic_class,
               ud->ah_attr.grh.flow_label, ud->ah_attr.dlid, ud->ah_attr.sl, ud->ah_attr.static_rate,
               ud->ah_attr.port_num);
    } else {
        struct rdma_conn_param *conn = &taken->param.conn;
        printf(" conn pdlen %d pd %s rr %d id %d fc %d retry %d rnr %d srq %d qpn %x", conn->private_data_len,
               conn->private_data ? "set" : "null", conn->responder_resources, conn->initiator_depth,
               conn->flow_control, conn->retry_count, conn->rnr_retry_count, conn->srq, conn->qp_num);
    }
    if (taken->param.conn.private_data_len && taken->param.conn.private_data)
        printf(" '%.20s'", (const char *)taken->param.conn.private_data);
    printf("\n");
    rdma_ack_cm_event(taken);
    return id;
}

static struct rdma_cm_id *server_event(int milliseconds) { return event("S", servers, milliseconds); }
static struct rdma_cm_id *client_event(int milliseconds) { return event("C", clients, milliseconds); }

static void drain_clients(int milliseconds)
{
    while (client_event(milliseconds)) {
    }
}

static void drain_servers(int milliseconds)
{
    while (server_event(milliseconds)) {
    }
}

static struct rdma_cm_id *new_id(struct rdma_event_channel *channel, void *context, enum rdma_port_space space)
{
    struct rdma_cm_id *id = NULL;
    CALL(rdma_create_id, channel, &id, context, space);
    return id;
}

static struct rdma_cm_id *listener(enum rdma_port_space space, int port)
{
    struct rdma_cm_id *id = new_id(servers, (void *)1, space);
    if (CALL(rdma_bind_addr, id, address(own, port)))
        return id;
    print_id("bound", id);
    CALL(rdma_listen, id, 4);
    print_id("listening", id);
    return id;
}

static void make_qp(struct rdma_cm_id *id, enum ibv_qp_type type)
{
    struct ibv_qp_init_attr attr = {.cap = {8, 8, 2, 2, 64}, .qp_type = type, .sq_sig_all = 1};
    int result = rdma_create_qp(id, NULL, &attr);
    printf("  create_qp %d errno %d caps %d %d %d %d inline %d cqs %s\n", result, result ? errno : 0,
           attr.cap.max_send_wr, attr.cap.max_recv_wr, attr.cap.max_send_sge, attr.cap.max_recv_sge,
           attr.cap.max_inline_data, attr.send_cq && attr.recv_cq ? "made" : "none");
}

enum qp { WITHOUT_QP, WITH_QP };

/* Creates an id, and resolves its address and route to a port of this host. */
static struct rdma_cm_id *client(enum rdma_port_space space, int port, enum qp qp)
{
    struct rdma_cm_id *id = new_id(clients, (void *)2, space);
    if (CALL(rdma_resolve_addr, id, NULL, address(own, port), 2000))
        return id;
    client_event(3000);
    print_id("resolved", id);
    if (CALL(rdma_resolve_route, id, 2000))
        return id;
    client_event(3000);
    print_id("routed", id);
    if (qp == WITH_QP) {
        make_qp(id, space == RDMA_PS_UDP ? IBV_QPT_UD : IBV_QPT_RC);
        print_qp("C new", id);
    }
    return id;
}

/* Destroys an id, and its queue pair if it has one. */
static void destroy(struct rdma_cm_id *id)
{
    if (id->qp)
        rdma_destroy_qp(id);
    CALL(rdma_destroy_id, id);
}

static void connect_and_disconnect(struct rdma_cm_id *listening)
{
    printf("== 1 connect, accept, disconnect by client\n");
    struct rdma_cm_id *c = client(RDMA_PS_TCP, 7001, WITH_QP);
    struct rdma_conn_param hello = {.private_data = "hello",
                                    .private_data_len = 6,
                                    .responder_resources = 3,
                                    .initiator_depth = 2,
                                    .retry_count = 5,
                                    .rnr_retry_count = 4,
                                    .flow_control = 1};
    CALL(rdma_connect, c, &hello);
    struct rdma_cm_id *s = server_event(3000);
    printf("  context %p ctx_same %d\n", s->context, s->context == listening->context);
    print_id("new", s);
    make_qp(s, IBV_QPT_RC);
    print_qp("S new", s);
    struct rdma_conn_param world = {.private_data = "world",
                                    .private_data_len = 6,
                                    .responder_resources = 1,
                                    .initiator_depth = 1,
                                    .rnr_retry_count = 6};
    CALL(rdma_accept, s, &world);
    print_qp("S accepted", s);
    client_event(3000);
    print_qp("C est", c);
    server_event(3000);
    print_qp("S est", s);
    CALL(rdma_disconnect, c);
    print_qp("C disc", c);
    server_event(3000);
    print_qp("S after DISCONNECTED", s);
    printf("  C before S answers:\n");
    client_event(300);
    CALL(rdma_disconnect, s);
    print_qp("S disc", s);
    drain_clients(2500);
    drain_servers(2500);
    CALL(rdma_disconnect, c);
    CALL(rdma_connect, c, &world);
    destroy(c);
    destroy(s);
}

static void refusals(void)
{
    struct rdma_conn_param none = {0};
    printf("== 2 reject with private data\n");
    struct rdma_cm_id *c = client(RDMA_PS_TCP, 7001, WITH_QP);
    CALL(rdma_connect, c, &none);
    struct rdma_cm_id *s = server_event(3000);
    CALL(rdma_reject, s, "no thanks", 10);
    client_event(3000);
    print_qp("C rejected", c);
    CALL(rdma_reject, s, NULL, 0);
    CALL(rdma_accept, s, &none);
    CALL(rdma_destroy_id, s);
    CALL(rdma_connect, c, &none);
    destroy(c);

    printf("== 3 destroy instead of accept\n");
    c = client(RDMA_PS_TCP, 7001, WITH_QP);
    CALL(rdma_connect, c, NULL);
    CALL(rdma_destroy_id, server_event(3000));
    client_event(3000);
    destroy(c);

    printf("== 4 no listener\n");
    c = client(RDMA_PS_TCP, 7009, WITH_QP);
    CALL(rdma_connect, c, NULL);
    client_event(3000);
    destroy(c);
}

static void private_data(void)
{
    char data[256];
    memset(data, 'x', sizeof data);
    printf("== 5 private data limits\n");
    struct rdma_cm_id *c = client(RDMA_PS_TCP, 7001, WITH_QP);
    struct rdma_conn_param param = {.private_data = data, .private_data_len = 57};
    CALL(rdma_connect, c, &param);
    param.private_data_len = 56;
    CALL(rdma_connect, c, &param);
    struct rdma_cm_id *s = server_event(3000);
    make_qp(s, IBV_QPT_RC);
    param.private_data_len = 197;
    CALL(rdma_accept, s, &param);
    client_event(1000);
    destroy(s);
    drain_clients(300);
    destroy(c);

    c = client(RDMA_PS_TCP, 7001, WITH_QP);
    param = (struct rdma_conn_param){0};
    CALL(rdma_connect, c, &param);
    s = server_event(3000);
    make_qp(s, IBV_QPT_RC);
    param = (struct rdma_conn_param){.private_data = data, .private_data_len = 196};
    CALL(rdma_accept, s, &param);
    client_event(1000);
    server_event(1000);
    printf("  destroy while connected\n");
    destroy(s);
    client_event(1000);
    drain_clients(1500);
    destroy(c);

    c = client(RDMA_PS_TCP, 7001, WITH_QP);
    CALL(rdma_connect, c, NULL);
    s = server_event(3000);
    CALL(rdma_reject, s, data, 149);
    CALL(rdma_reject, s, data, 148);
    client_event(1000);
    CALL(rdma_destroy_id, s);
    destroy(c);
}

static void large_resources(void)
{
    printf("== 6 too large resources\n");
    struct rdma_cm_id *c = client(RDMA_PS_TCP, 7001, WITH_QP);
    struct rdma_conn_param param = {.responder_resources = 200};
    CALL(rdma_connect, c, &param);
    param = (struct rdma_conn_param){
        .responder_resources = 255, .initiator_depth = 255, .retry_count = 15, .rnr_retry_count = 15};
    CALL(rdma_connect, c, &param);
    CALL(rdma_destroy_id, server_event(3000));
    drain_clients(300);
    destroy(c);
}

static void foreign_qp(void)
{
    printf("== 7 no qp: CONNECT_RESPONSE, establish\n");
    struct rdma_cm_id *c = client(RDMA_PS_TCP, 7001, WITHOUT_QP);
    struct rdma_conn_param param = {.qp_num = 0x123};
    CALL(rdma_connect, c, NULL);
    CALL(rdma_connect, c, &param);
    struct rdma_cm_id *s = server_event(3000);
    param.qp_num = 0x456;
    CALL(rdma_accept, s, &param);
    client_event(1000);
    for (int state = IBV_QPS_INIT; state <= IBV_QPS_RTS; state++) {
        int mask = 0;
        struct ibv_qp_attr attr = {.qp_state = state};
        int result = rdma_init_qp_attr(c, &attr, &mask);
        printf("  init_qp_attr C %d = %d mask %x access %x mtu %d dest %x rq %x sq %x timeout %d retry %d rnr %d rd %d "
               "dest_rd %d minrnr %d sgid_i %d hop %d fl %x tc %d\n",
               state, result, mask, attr.qp_access_flags, attr.path_mtu, attr.dest_qp_num, attr.rq_psn, attr.sq_psn,
               attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.max_rd_atomic, attr.max_dest_rd_atomic,
               attr.min_rnr_timer, attr.ah_attr.grh.sgid_index, attr.ah_attr.grh.hop_limit,
               attr.ah_attr.grh.flow_label, attr.ah_attr.grh.traffic_class);
        attr = (struct ibv_qp_attr){.qp_state = state};
        result = rdma_init_qp_attr(s, &attr, &mask);
        printf("  init_qp_attr S %d = %d mask %x timeout %d fl %x\n", state, result, mask, attr.timeout,
               attr.ah_attr.grh.flow_label);
    }
    drain_servers(300);
    CALL(rdma_establish, c);
    server_event(1000);
    drain_clients(300);
    CALL(rdma_disconnect, s);
    client_event(1000);
    CALL(rdma_destroy_id, c);
    server_event(1000);
    CALL(rdma_destroy_id, s);
}

static void binding(void)
{
    int one = 1;
    uint8_t tos = 0x68, timeout = 14;
    printf("== 8 bind errors\n");
    struct rdma_cm_id *x = new_id(servers, NULL, RDMA_PS_TCP);
    CALL(rdma_bind_addr, x, address(own, 7001));
    CALL(rdma_bind_addr, x, address("0.0.0.0", 7001));
    CALL(rdma_bind_addr, x, address("127.0.0.1", 7001));
    CALL(rdma_bind_addr, x, address("192.0.2.77", 7002));
    CALL(rdma_bind_addr, x, address(own, 0));
    print_id("any port", x);
    printf("  src port %d dst port %d\n", ntohs(rdma_get_src_port(x)), ntohs(rdma_get_dst_port(x)));
    CALL(rdma_bind_addr, x, address(own, 7003));
    CALL(rdma_listen, x, 0);
    CALL(rdma_listen, x, 0);
    CALL(rdma_destroy_id, x);

    x = new_id(servers, NULL, RDMA_PS_TCP);
    CALL(rdma_listen, x, 0);
    print_id("listen unbound", x);
    CALL(rdma_destroy_id, x);
    x = new_id(servers, NULL, RDMA_PS_UDP);
    CALL(rdma_bind_addr, x, address(own, 7001));
    CALL(rdma_destroy_id, x);

    x = new_id(servers, NULL, RDMA_PS_TCP);
    struct rdma_cm_id *y = new_id(servers, NULL, RDMA_PS_TCP);
    CALL(rdma_set_option, x, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &one, sizeof one);
    CALL(rdma_set_option, y, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &one, sizeof one);
    CALL(rdma_bind_addr, x, address(own, 7011));
    CALL(rdma_bind_addr, y, address(own, 7011));
    CALL(rdma_listen, x, 0);
    CALL(rdma_listen, y, 0);
    CALL(rdma_destroy_id, y);
    CALL(rdma_destroy_id, x);

    x = new_id(servers, NULL, RDMA_PS_TCP);
    CALL(rdma_set_option, x, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, 1);
    CALL(rdma_set_option, x, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &one, 4);
    CALL(rdma_set_option, x, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, 1);
    CALL(rdma_set_option, x, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &one, 4);
    CALL(rdma_set_option, x, 0, 9, &one, 4);
    CALL(rdma_set_option, x, 5, 0, &one, 4);
    CALL(rdma_set_option, x, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &one, 4);
    CALL(rdma_destroy_id, x);
    new_id(servers, NULL, 0x9999);
}

static void states(void)
{
    struct rdma_conn_param none = {0};
    printf("== 9 state errors\n");
    struct rdma_cm_id *x = new_id(clients, NULL, RDMA_PS_TCP);
    CALL(rdma_disconnect, x);
    CALL(rdma_reject, x, NULL, 0);
    CALL(rdma_notify, x, IBV_EVENT_COMM_EST);
    CALL(rdma_resolve_addr, x, NULL, address("192.0.2.77", 1), 500);
    drain_clients(1500);
    CALL(rdma_resolve_addr, x, NULL, address("10.9.0.99", 1), 500);
    drain_clients(1500);
    CALL(rdma_resolve_addr, x, NULL, address(own, 1), 500);
    drain_clients(1000);
    CALL(rdma_resolve_addr, x, NULL, address(own, 1), 500);
    CALL(rdma_resolve_route, x, 0);
    CALL(rdma_connect, x, &none);
    CALL(rdma_resolve_route, x, 1000);
    drain_clients(500);
    CALL(rdma_resolve_route, x, 1000);
    CALL(rdma_destroy_id, x);

    x = new_id(clients, NULL, RDMA_PS_TCP);
    CALL(rdma_resolve_addr, x, NULL, address("127.0.0.1", 7001), 500);
    drain_clients(1000);
    print_id("lo", x);
    CALL(rdma_resolve_route, x, 1000);
    drain_clients(500);
    CALL(rdma_destroy_id, x);
}

static void datagrams(void)
{
    char data[256];
    memset(data, 'x', sizeof data);
    printf("== 10 UDP\n");
    struct rdma_cm_id *listening = listener(RDMA_PS_UDP, 7001), *c = client(RDMA_PS_UDP, 7001, WITH_QP);
    struct rdma_conn_param param = {
        .private_data = "hello ud", .private_data_len = 9, .qp_num = c->qp->qp_num};
    CALL(rdma_connect, c, &param);
    struct rdma_cm_id *s = server_event(3000);
    print_id("ud new", s);
    make_qp(s, IBV_QPT_UD);
    print_qp("S ud", s);
    param = (struct rdma_conn_param){.private_data = "yes", .private_data_len = 4, .qp_num = s->qp->qp_num};
    CALL(rdma_accept, s, &param);
    drain_clients(500);
    drain_servers(500);
    CALL(rdma_disconnect, c);
    drain_clients(300);
    destroy(s);
    destroy(c);

    c = client(RDMA_PS_UDP, 7001, WITH_QP);
    param = (struct rdma_conn_param){.private_data = data, .private_data_len = 181};
    CALL(rdma_connect, c, &param);
    param.private_data_len = 180;
    CALL(rdma_connect, c, &param);
    s = server_event(3000);
    CALL(rdma_reject, s, "ud no", 6);
    CALL(rdma_destroy_id, s);
    drain_clients(500);
    destroy(c);

    c = client(RDMA_PS_UDP, 7009, WITH_QP);
    CALL(rdma_connect, c, NULL);
    drain_clients(500);
    destroy(c);
    CALL(rdma_destroy_id, listening);
}

static void multicast(void)
{
    printf("== 11 multicast\n");
    struct rdma_cm_id *c = new_id(clients, NULL, RDMA_PS_UDP);
    CALL(rdma_bind_addr, c, address(own, 0));
    make_qp(c, IBV_QPT_UD);
    CALL(rdma_join_multicast, c, address("239.1.2.3", 0), (void *)0x77);
    drain_clients(1000);
    CALL(rdma_leave_multicast, c, address("239.1.2.3", 0));
    CALL(rdma_leave_multicast, c, address("239.1.2.3", 0));
    struct sockaddr_in6 group = {.sin6_family = AF_INET6};
    inet_pton(AF_INET6, "ff15::7", &group.sin6_addr);
    CALL(rdma_join_multicast, c, (struct sockaddr *)&group, NULL);
    drain_clients(500);
    destroy(c);
}

static void backlog(struct rdma_cm_id *listening)
{
    enum { REQUESTS = 6 };
    struct rdma_cm_id *waiting[REQUESTS];
    printf("== 12 backlog and listener destroyed\n");
    for (int i = 0; i < REQUESTS; i++) {
        waiting[i] = client(RDMA_PS_TCP, 7001, WITHOUT_QP);
        struct rdma_conn_param param = {.qp_num = 100 + i};
        CALL(rdma_connect, waiting[i], &param);
    }
    usleep(500000);
    drain_clients(300);
    CALL(rdma_destroy_id, listening);
    drain_clients(500);
    for (int i = 0; i < REQUESTS; i++)
        CALL(rdma_destroy_id, waiting[i]);
}

static void names(void)
{
    printf("== 13 getaddrinfo\n");
    struct rdma_addrinfo hints = {0}, *found = NULL;
    printf("  bad host %d\n", rdma_getaddrinfo("nosuchhost.invalid", "7001", &hints, &found));
    hints.ai_port_space = RDMA_PS_TCP;
    int result = rdma_getaddrinfo(own, "7001", &hints, &found);
    printf("  %d flags %x fam %d qpt %d ps %x srclen %d dstlen %d route %zu\n", result, found->ai_flags,
           found->ai_family, found->ai_qp_type, found->ai_port_space, found->ai_src_len, found->ai_dst_len,
           found->ai_route_len);
    rdma_freeaddrinfo(found);
    hints.ai_flags = RAI_PASSIVE;
    result = rdma_getaddrinfo(NULL, "7001", &hints, &found);
    printf("  passive %d flags %x fam %d qpt %d ps %x srclen %d dstlen %d\n", result, found->ai_flags,
           found->ai_family, found->ai_qp_type, found->ai_port_space, found->ai_src_len, found->ai_dst_len);
    rdma_freeaddrinfo(found);
}

int main(int count, char **words)
{
    if (count != 2) {
        fprintf(stderr, "usage: cm_probe ADDRESS\n");
        return 2;
    }
    own = words[1];
    setbuf(stdout, NULL);
    seconds();
    servers = rdma_create_event_channel();
    clients = rdma_create_event_channel();
    if (!servers || !clients) {
        perror("rdma_create_event_channel");
        return 1;
    }
    printf("== 0 a listener\n");
    struct rdma_cm_id *listening = listener(RDMA_PS_TCP, 7001);
    connect_and_disconnect(listening);
    refusals();
    private_data();
    large_resources();
    foreign_qp();
    binding();
    states();
    datagrams();
    multicast();
    backlog(listening);
    names();
    printf("done\n");
    return 0;
}
