// The files of a device, in every way in which a program looks at one; those of none; and all other files.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHECK(what)                                                                                                    \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            printf("line %d: %s (%s)\n", __LINE__, #what, strerror(errno));                                            \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

#define KIND "/sys/class/infiniband/roce0/ports/1/gid_attrs/types/0"
#define NODE "/dev/infiniband/uverbs0"

// Whether a descriptor has just this to say.
static int says(int file, const char *wanted) {
    char text[64] = {0};
    CHECK(file >= 0);
    CHECK(read(file, text, sizeof text - 1) >= 0);
    CHECK(close(file) == 0);
    return strcmp(text, wanted) == 0;
}

static void read_one(void) {
    CHECK(says(open(KIND, O_RDONLY), "RoCE v2\n"));
    CHECK(says(openat(AT_FDCWD, KIND, O_RDONLY | O_CLOEXEC), "RoCE v2\n"));
    int file = open(KIND, O_RDONLY | O_CLOEXEC);
    CHECK(fcntl(file, F_GETFD) == FD_CLOEXEC);
    close(file);
    file = open(KIND, O_RDONLY);
    CHECK(fcntl(file, F_GETFD) == 0);
    close(file);
    char line[64];
    FILE *stream = fopen(KIND, "r");
    CHECK(stream && fgets(line, sizeof line, stream) && strcmp(line, "RoCE v2\n") == 0);
    fclose(stream);
    CHECK(open(KIND, O_WRONLY) < 0);
    CHECK(!fopen(KIND, "w"));
}

static void look_at_them(void) {
    struct stat there;
    struct statx more;
    CHECK(stat(NODE, &there) == 0 && S_ISCHR(there.st_mode) && (there.st_mode & 0666) == 0666);
    CHECK(lstat(NODE, &there) == 0 && S_ISCHR(there.st_mode));
    CHECK(fstatat(AT_FDCWD, NODE, &there, 0) == 0 && S_ISCHR(there.st_mode));
    CHECK(statx(AT_FDCWD, NODE, 0, STATX_TYPE, &more) == 0 && S_ISCHR(more.stx_mode));
    CHECK(access(NODE, R_OK | W_OK) == 0 && faccessat(AT_FDCWD, NODE, F_OK, 0) == 0);
    CHECK(stat(KIND, &there) == 0 && S_ISREG(there.st_mode));
    CHECK(access(KIND, R_OK) == 0 && access(KIND, W_OK) < 0 && errno == EACCES);
    CHECK(stat("/sys/class/infiniband/roce0", &there) == 0 && S_ISDIR(there.st_mode));
    int file = open(NODE, O_RDWR);
    CHECK(file >= 0 && close(file) == 0);
}

static void miss_others(void) {
    struct stat there;
    CHECK(open("/sys/class/infiniband/roce9/node_guid", O_RDONLY) < 0 && errno == ENOENT);
    CHECK(open("/sys/class/infiniband/roce0/no_such_file", O_RDONLY) < 0 && errno == ENOENT);
    CHECK(open("/sys/class/infiniband/roce0/ports/1/gid_attrs/types/99", O_RDONLY) < 0 && errno == ENOENT);
    CHECK(access("/dev/infiniband/uverbs9", F_OK) < 0 && errno == ENOENT);
    CHECK(stat("/dev/infiniband/", &there) < 0 && errno == ENOENT);
}

// All else is as it was.
static void leave_all_else(void) {
    char name[] = "/tmp/roce-files-XXXXXX", line[64];
    int file = mkstemp(name);
    CHECK(file >= 0 && write(file, "mine\n", 5) == 5 && close(file) == 0 && unlink(name) == 0);
    file = open(name, O_CREAT | O_EXCL | O_WRONLY, 0640);
    CHECK(file >= 0 && write(file, "mine\n", 5) == 5 && close(file) == 0);
    struct stat there;
    CHECK(stat(name, &there) == 0 && (there.st_mode & 0777) == 0640 && there.st_size == 5);
    CHECK(says(open(name, O_RDONLY), "mine\n"));
    FILE *stream = fopen(name, "a+");
    CHECK(stream && fgets(line, sizeof line, stream) && strcmp(line, "mine\n") == 0);
    fclose(stream);
    CHECK(unlink(name) == 0 && access(name, F_OK) < 0 && errno == ENOENT);
    const char *volatile none = NULL;
    CHECK(open(none, O_RDONLY) < 0 && errno == EFAULT);
    CHECK(stat(none, &there) < 0 && errno == EFAULT);
}

int main(void) {
    umask(0);
    // Twice: the first who looks finds out where libc's functions are.
    for (int round = 0; round < 2; round++) {
        leave_all_else();
        read_one();
        look_at_them();
        miss_others();
    }
    puts("fine");
}
