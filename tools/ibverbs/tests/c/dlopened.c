/* librdmacm as a library that is loaded later, in a program that is linked with neither it nor
 * libibverbs, as by Python or by a plug-in. It creates, binds and destroys an id, and says that
 * all is fine. */
#include <rdma/rdma_cma.h>

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define FIND(name) __typeof__(&name) find_##name = (__typeof__(&name))dlsym(library, #name)

int main(int count, char **words) {
    void *library = dlopen("librdmacm.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library || count != 2)
        return fprintf(stderr, "%s\n", dlerror()), 1;
    FIND(rdma_create_event_channel);
    FIND(rdma_create_id);
    FIND(rdma_bind_addr);
    FIND(rdma_listen);
    FIND(rdma_destroy_id);
    FIND(rdma_destroy_event_channel);
    struct rdma_event_channel *channel = find_rdma_create_event_channel();
    if (!channel)
        return fprintf(stderr, "rdma_create_event_channel: %s\n", strerror(errno)), 1;
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_port = htons(7174)};
    struct rdma_cm_id *id;
    if (inet_pton(AF_INET, words[1], &own.sin_addr) != 1 || find_rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) ||
        find_rdma_bind_addr(id, (struct sockaddr *)&own) || find_rdma_listen(id, 1) || !id->verbs)
        return fprintf(stderr, "an id: %s\n", strerror(errno)), 1;
    if (find_rdma_destroy_id(id))
        return 1;
    find_rdma_destroy_event_channel(channel);
    puts("fine");
    return 0;
}
