// The files of an open device say what its verbs say, whichever address it got.
#include "verbs.h"

// rdma-core declares it for drivers only.
int ibv_read_sysfs_file(const char *directory, const char *file, char *text, size_t size);

static void read_text(const char *path, char *text, size_t size) {
    FILE *stream = fopen(path, "r");
    CHECK(stream && fgets(text, size, stream));
    fclose(stream);
}

int main(void) {
    struct ibv_context *context = open_device(0);
    CHECK(context);
    union ibv_gid gid;
    CHECK(ibv_query_gid(context, 1, 0, &gid) == 0);
    char wanted[64] = "", text[64];
    for (int i = 0; i < 16; i += 2)
        sprintf(wanted + strlen(wanted), "%02x%02x%c", gid.raw[i], gid.raw[i + 1], i < 14 ? ':' : '\n');
    read_text("/sys/class/infiniband/roce0/ports/1/gids/0", text, sizeof text);
    printf("%s%s", text, wanted);
    CHECK(strcmp(text, wanted) == 0);
    // The library reads the same.
    char short_text[64] = "";
    CHECK(ibv_read_sysfs_file(context->device->ibdev_path, "ports/1/gids/0", short_text, sizeof short_text) > 0);
    CHECK(strncmp(short_text, wanted, strlen(short_text)) == 0 && strlen(short_text) == strlen(wanted) - 1);
    CHECK(ibv_close_device(context) == 0);
    puts("fine");
}
