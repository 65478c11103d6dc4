// A libibverbs under another name, as some wheels bring one, in which no device is ever found. With
// PROGRAM, a program that is linked with it.
#include <stddef.h>
#include <stdio.h>

#ifdef PROGRAM
void **ibv_get_device_list(int *count);
const char *ibv_get_device_name(void *device);

int main(void) {
    int count = 0;
    void **list = ibv_get_device_list(&count);
    printf("%d devices, %s\n", count, count ? ibv_get_device_name(list[0]) : "none");
}
#else
void **ibv_get_device_list(int *count) {
    static void *none[1];
    *count = 0;
    return none;
}
const char *ibv_get_device_name(void *device) { return device; }
#endif
