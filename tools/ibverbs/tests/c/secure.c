// Says whether the kernel distrusts the environment, and opens a device.
#include "verbs.h"

#include <sys/auxv.h>

int main(void) {
    int count = 0;
    struct ibv_device **list = ibv_get_device_list(&count);
    struct ibv_context *context = list && count ? ibv_open_device(list[0]) : NULL;
    printf("secure %lu devices %d open %d\n", getauxval(AT_SECURE), count, context != NULL);
    return 0;
}
