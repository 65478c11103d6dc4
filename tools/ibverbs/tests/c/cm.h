/* Shared by the test programs over librdmacm. */
#ifndef CM_H
#define CM_H

#include <rdma/rdma_cma.h>

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"

static inline struct sockaddr *address(const char *text, int port) {
    static struct sockaddr_storage storage;
    struct sockaddr_in *v4 = (struct sockaddr_in *)&storage;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&storage;
    memset(&storage, 0, sizeof storage);
    if (inet_pton(AF_INET, text, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons(port);
    } else {
        CHECK(inet_pton(AF_INET6, text, &v6->sin6_addr) == 1);
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons(port);
    }
    return (struct sockaddr *)&storage;
}

static inline struct rdma_cm_id *new_id(struct rdma_event_channel *channel) {
    struct rdma_cm_id *id;
    CHECK(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
    return id;
}

static inline struct rdma_cm_id *expect(struct rdma_event_channel *channel, enum rdma_cm_event_type wanted) {
    struct rdma_cm_event *event;
    CHECK(!rdma_get_cm_event(channel, &event));
    if (event->event != wanted)
        fprintf(stderr, "%s, status %d, instead of %s\n", rdma_event_str(event->event), event->status, rdma_event_str(wanted));
    CHECK(event->event == wanted && event->status == 0);
    struct rdma_cm_id *id = event->id;
    rdma_ack_cm_event(event);
    return id;
}

#endif
