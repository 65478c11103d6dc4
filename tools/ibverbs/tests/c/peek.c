// A process that lets others read its memory, and one that reads it: as UCX and Open MPI copy
// between processes of a host.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

static char text[] = "as the owner wrote it";

int main(int argc, char **argv) {
    if (argc < 3) {
        prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
        printf("%d %p\n", getpid(), (void *)text);
        fflush(stdout);
        return getchar() == EOF ? 0 : 1;
    }
    char found[sizeof text] = "";
    struct iovec to = {found, sizeof found}, from = {(void *)strtoull(argv[2], NULL, 16), sizeof found};
    if (process_vm_readv(atoi(argv[1]), &to, 1, &from, 1, 0) < 0)
        perror("process_vm_readv");
    puts(found);
}
