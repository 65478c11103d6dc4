// Checks that a program sees the files of a device by every call that looks at files, that missing
// devices have no files, and that other files are as without a device. With "dump", prints all
// files of the device, so that the forms of ROCE_FILES can be compared.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define CHECK(what)                                                                                                    \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            printf("line %d: %s (%s)\n", __LINE__, #what, strerror(errno));                                            \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

// Functions that a program calls that was built with _FORTIFY_SOURCE, or with a glibc before 2.33.
int __open_2(const char *path, int flags);
int __open64_2(const char *path, int flags);
int __openat_2(int at, const char *path, int flags);
int __openat64_2(int at, const char *path, int flags);
int __xstat(int version, const char *path, struct stat *to);
int __lxstat(int version, const char *path, struct stat *to);
int __fxstatat(int version, int at, const char *path, struct stat *to, int flags);
int __xstat64(int version, const char *path, struct stat64 *to);
int __lxstat64(int version, const char *path, struct stat64 *to);
int __fxstatat64(int version, int at, const char *path, struct stat64 *to, int flags);
char *__realpath_chk(const char *path, char *to, size_t room);
ssize_t __readlink_chk(const char *path, char *to, size_t size, size_t room);
ssize_t __readlinkat_chk(int at, const char *path, char *to, size_t size, size_t room);

#define DEVICE "/sys/class/infiniband/roce0"
#define REAL "/sys/devices/roce/roce0"
#define PORT DEVICE "/ports/1"
#define TYPE PORT "/gid_attrs/types/0"
#define EMPTY PORT "/gid_attrs/types/9"
#define NODE "/dev/infiniband/uverbs0"

// Whether a file has exactly this content. Closes it.
static int has_content(int file, const char *wanted) {
    char text[64] = {0};
    CHECK(file >= 0);
    CHECK(read(file, text, sizeof text - 1) >= 0);
    CHECK(close(file) == 0);
    return strcmp(text, wanted) == 0;
}

// Content of TYPE: the type of GID 0.
static char type[64];

static void read_one(void) {
    CHECK(has_content(open(TYPE, O_RDONLY), type));
    CHECK(has_content(open64(TYPE, O_RDONLY), type));
    CHECK(has_content(openat(AT_FDCWD, TYPE, O_RDONLY | O_CLOEXEC), type));
    CHECK(has_content(openat64(AT_FDCWD, TYPE, O_RDONLY), type));
    CHECK(has_content(__open_2(TYPE, O_RDONLY), type) && has_content(__open64_2(TYPE, O_RDONLY), type));
    CHECK(has_content(__openat_2(AT_FDCWD, TYPE, O_RDONLY), type) && has_content(__openat64_2(AT_FDCWD, TYPE, O_RDONLY), type));
    int file = open(TYPE, O_RDONLY | O_CLOEXEC);
    CHECK(fcntl(file, F_GETFD) == FD_CLOEXEC);
    close(file);
    file = open(TYPE, O_RDONLY);
    CHECK(fcntl(file, F_GETFD) == 0);
    close(file);
    char line[64];
    FILE *stream = fopen(TYPE, "r");
    CHECK(stream && fgets(line, sizeof line, stream) && strcmp(line, type) == 0);
    CHECK((stream = freopen(TYPE, "re", stream)) && fgets(line, sizeof line, stream) && strcmp(line, type) == 0);
    fclose(stream);
    stream = fopen64(TYPE, "r");
    CHECK(stream && fgets(line, sizeof line, stream) && strcmp(line, type) == 0);
    fclose(stream);
    CHECK(has_content(open("//sys/./class/net/../infiniband//roce0/ports/../ports/1/gid_attrs/types/0", O_RDONLY), type));
    if (geteuid() != 0) {
        CHECK(open(TYPE, O_WRONLY) < 0 && errno == EACCES);
        CHECK(!fopen(TYPE, "w") && errno == EACCES);
    }
}

// The attributes of a row without a GID can be opened, but not read.
static void read_an_empty_row(void) {
    char text[64];
    int file = open(EMPTY, O_RDONLY);
    CHECK(file >= 0 && read(file, text, sizeof text) < 0 && errno == EINVAL);
    close(file);
    CHECK(has_content(open(PORT "/gids/9", O_RDONLY), "0000:0000:0000:0000:0000:0000:0000:0000\n"));
}

static void stat_files(void) {
    struct stat there;
    struct stat64 there64;
    struct statx more;
    CHECK(stat(NODE, &there) == 0 && S_ISCHR(there.st_mode) && (there.st_mode & 0666) == 0666);
    CHECK(stat64(NODE, &there64) == 0 && S_ISCHR(there64.st_mode));
    CHECK(lstat(NODE, &there) == 0 && S_ISCHR(there.st_mode));
    CHECK(lstat64(NODE, &there64) == 0 && S_ISCHR(there64.st_mode));
    CHECK(fstatat(AT_FDCWD, NODE, &there, 0) == 0 && S_ISCHR(there.st_mode));
    CHECK(fstatat(AT_FDCWD, NODE, &there, AT_SYMLINK_NOFOLLOW) == 0 && S_ISCHR(there.st_mode));
    CHECK(fstatat64(AT_FDCWD, NODE, &there64, AT_SYMLINK_NOFOLLOW) == 0 && S_ISCHR(there64.st_mode));
    CHECK(statx(AT_FDCWD, NODE, AT_SYMLINK_NOFOLLOW, STATX_TYPE, &more) == 0 && S_ISCHR(more.stx_mode));
    CHECK(__xstat(1, DEVICE, &there) == 0 && S_ISDIR(there.st_mode));
    CHECK(__xstat64(1, DEVICE, &there64) == 0 && S_ISDIR(there64.st_mode));
    CHECK(__lxstat(1, DEVICE, &there) == 0 && S_ISLNK(there.st_mode));
    CHECK(__lxstat64(1, NODE, &there64) == 0 && S_ISCHR(there64.st_mode));
    CHECK(__fxstatat(1, AT_FDCWD, DEVICE, &there, 0) == 0 && S_ISDIR(there.st_mode));
    CHECK(__fxstatat64(1, AT_FDCWD, DEVICE, &there64, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(there64.st_mode));
    CHECK(access(NODE, R_OK | W_OK) == 0 && faccessat(AT_FDCWD, NODE, F_OK, 0) == 0);
    CHECK(eaccess(NODE, R_OK) == 0 && euidaccess(TYPE, R_OK) == 0);
    CHECK(stat(TYPE, &there) == 0 && S_ISREG(there.st_mode) && (there.st_mode & 0777) == 0444);
    CHECK(access(TYPE, R_OK) == 0);
    CHECK(geteuid() == 0 || (access(TYPE, W_OK) < 0 && errno == EACCES));
    CHECK(stat(DEVICE, &there) == 0 && S_ISDIR(there.st_mode));
    CHECK(lstat(DEVICE, &there) == 0 && S_ISLNK(there.st_mode));
    CHECK(stat("/dev/infiniband/", &there) == 0 && S_ISDIR(there.st_mode));
    int file = open(NODE, O_RDWR);
    CHECK(file >= 0 && close(file) == 0);
}

static int is(char *path, const char *wanted) {
    int same = path && strcmp(path, wanted) == 0;
    if (!same)
        printf("%s is not %s\n", path ? path : "nothing", wanted);
    free(path);
    return same;
}

static void resolve_paths(void) {
    char to[PATH_MAX];
    // As for an RNIC, whose PCI device is two directories above its RDMA device.
    CHECK(realpath(DEVICE "/../..", to) == to && strcmp(to, REAL) == 0);
    CHECK(is(realpath(DEVICE "/device", NULL), REAL));
    CHECK(__realpath_chk(DEVICE, to, sizeof to) == to && strcmp(to, REAL "/infiniband/roce0") == 0);
    CHECK(is(canonicalize_file_name("/sys/class/infiniband_verbs/uverbs0"), REAL "/infiniband_verbs/uverbs0"));
    CHECK(is(realpath(DEVICE "/device/infiniband_verbs/../numa_node", NULL), REAL "/numa_node"));
    CHECK(is(realpath(NODE, NULL), NODE) && is(canonicalize_file_name(NODE), NODE));
    CHECK(!realpath("/sys/class/infiniband/roce9/../..", to) && errno == ENOENT);
    const char wanted[] = "../../devices/roce/roce0/infiniband/roce0";
    ssize_t length = sizeof wanted - 1;
    CHECK(readlink(DEVICE, to, sizeof to) == length && memcmp(to, wanted, length) == 0);
    CHECK(readlinkat(AT_FDCWD, DEVICE, to, sizeof to) == length && memcmp(to, wanted, length) == 0);
    CHECK(__readlink_chk(DEVICE, to, sizeof to, sizeof to) == length);
    CHECK(__readlinkat_chk(AT_FDCWD, DEVICE, to, sizeof to, sizeof to) == length);
    CHECK(readlink(NODE, to, sizeof to) < 0 && errno == EINVAL);
    // The network interface is in device/net by its name, with its own files.
    struct stat there;
    CHECK(stat(DEVICE "/device/net/lo/mtu", &there) == 0);
    char name[64];
    int file = open(DEVICE "/ports", O_RDONLY | O_DIRECTORY);
    snprintf(name, sizeof name, "/proc/self/fd/%d", file);
    length = readlink(name, to, sizeof to - 1);
    to[length < 0 ? 0 : length] = 0;
    CHECK(strcmp(to, REAL "/infiniband/roce0/ports") == 0);
    close(file);
}

static int of_roce(const struct dirent *entry) { return strncmp(entry->d_name, "roce", 4) == 0; }
static int of_roce64(const struct dirent64 *entry) { return strncmp(entry->d_name, "roce", 4) == 0; }

static int entries(DIR *directory, const char *wanted) {
    int count = 0, found = 0;
    CHECK(directory);
    for (struct dirent *entry; (entry = readdir(directory)); count++)
        found |= strcmp(entry->d_name, wanted) == 0;
    CHECK(found && closedir(directory) == 0);
    return count - 2;
}

static void list_directories(void) {
    struct dirent **names;
    struct dirent64 **names64;
    CHECK(entries(opendir("/sys/class/infiniband"), "roce0") == 1);
    CHECK(entries(opendir("/sys/class/infiniband_verbs/"), "uverbs0") == 2);
    CHECK(entries(opendir("/dev/infiniband"), "uverbs0") == 2 && entries(opendir("/dev/infiniband"), "rdma_cm") == 2);
    CHECK(entries(opendir(DEVICE "/ports"), "1") == 1);
    CHECK(entries(opendir(PORT "/gids"), "0") == 16 && entries(opendir(PORT "/gid_attrs/ndevs"), "15") == 16);
    CHECK(entries(opendir(DEVICE "/device/net"), "lo") == 1);
    CHECK(entries(fdopendir(open(PORT, O_RDONLY | O_DIRECTORY)), "state") >= 10);
    CHECK(scandir("/sys/class/infiniband", &names, of_roce, alphasort) == 1 && strcmp(names[0]->d_name, "roce0") == 0);
    CHECK(scandir64("/sys/class/infiniband", &names64, of_roce64, alphasort64) == 1);
    CHECK(scandirat(AT_FDCWD, "/sys/class/infiniband", &names, of_roce, alphasort) == 1);
    CHECK(!opendir("/sys/class/infiniband/roce9") && errno == ENOENT);
    CHECK(!opendir(TYPE) && errno == ENOTDIR);
    glob_t found = {0};
    CHECK(glob("/sys/class/infiniband/*/ports/*/state", 0, NULL, &found) == 0 && found.gl_pathc == 1);
    CHECK(strcmp(found.gl_pathv[0], PORT "/state") == 0);
    globfree(&found);
    glob64_t found64 = {0};
    CHECK(glob64("/dev/infiniband/uverbs*", 0, NULL, &found64) == 0 && found64.gl_pathc == 1);
    globfree64(&found64);
    CHECK(glob("/usr/*", 0, NULL, &found) == 0 && found.gl_pathc > 1);
    globfree(&found);
}

// Uses paths relative to a directory of the device.
static void use_relative_paths(void) {
    char before[PATH_MAX], now[PATH_MAX];
    struct stat there;
    CHECK(getcwd(before, sizeof before));
    int directory = open(PORT, O_RDONLY | O_DIRECTORY);
    CHECK(directory >= 0 && has_content(openat(directory, "gid_attrs/types/0", O_RDONLY), type));
    CHECK(fstatat(directory, "../../device", &there, 0) == 0 && S_ISDIR(there.st_mode));
    CHECK(close(directory) == 0);
    CHECK(chdir(PORT) == 0 && has_content(open("gid_attrs/types/0", O_RDONLY), type));
    CHECK(getcwd(now, sizeof now) && strcmp(now, REAL "/infiniband/roce0/ports/1") == 0);
    CHECK(is(getcwd(NULL, 0), now) && is(get_current_dir_name(), now) && is(realpath(".", NULL), now));
    CHECK(!getcwd(now, 8) && errno == ERANGE);
    CHECK(chdir(before) == 0 && getcwd(now, sizeof now) && strcmp(now, before) == 0);
}

static void check_missing_files(void) {
    CHECK(open("/sys/class/infiniband/roce9/node_guid", O_RDONLY) < 0 && errno == ENOENT);
    CHECK(open(DEVICE "/no_such_file", O_RDONLY) < 0 && errno == ENOENT);
    CHECK(open(DEVICE "/no_such_file", O_WRONLY) < 0 && errno == ENOENT);
    CHECK(open(PORT "/gid_attrs/types/99", O_RDONLY) < 0 && errno == ENOENT);
    CHECK(access("/dev/infiniband/uverbs9", F_OK) < 0 && errno == ENOENT);
    CHECK(access("/sys/class/infinibandx", F_OK) < 0 && errno == ENOENT);
    CHECK(access("/sys/class/net/lo/mtu", R_OK) == 0 && access("/dev/null", W_OK) == 0);
    CHECK(is(realpath("/sys/class/net", NULL), "/sys/class/net"));
}

// Checks that other files are as without a device.
static void check_other_files(void) {
    char name[PATH_MAX], line[64];
    snprintf(name, sizeof name, "%s/XXXXXX", getenv("TMPDIR"));
    int file = mkstemp(name);
    CHECK(file >= 0 && write(file, "mine\n", 5) == 5 && close(file) == 0 && unlink(name) == 0);
    file = open(name, O_CREAT | O_EXCL | O_WRONLY, 0640);
    CHECK(file >= 0 && write(file, "mine\n", 5) == 5 && close(file) == 0);
    struct stat there;
    CHECK(stat(name, &there) == 0 && (there.st_mode & 0777) == 0640 && there.st_size == 5);
    CHECK(has_content(open(name, O_RDONLY), "mine\n"));
    FILE *stream = fopen(name, "a+");
    CHECK(stream && fgets(line, sizeof line, stream) && strcmp(line, "mine\n") == 0);
    fclose(stream);
    CHECK(unlink(name) == 0 && access(name, F_OK) < 0 && errno == ENOENT);
    const char *volatile none = NULL;
    CHECK(open(none, O_RDONLY) < 0 && errno == EFAULT);
    CHECK(stat(none, &there) < 0 && errno == EFAULT);
    CHECK(!realpath(none, NULL) && errno == EINVAL);
}

// Prints a line for each file below a path: its mode, its content, and its real path.
static void dump(const char *path) {
    char text[4096], below[PATH_MAX];
    struct stat there;
    CHECK(lstat(path, &there) == 0);
    printf("%s %o", path, there.st_mode);
    if (S_ISLNK(there.st_mode)) {
        ssize_t length = readlink(path, text, sizeof text);
        CHECK(length > 0);
        printf(" -> %.*s", (int)length, text);
    } else if (S_ISCHR(there.st_mode)) {
        printf(" %u:%u", major(there.st_rdev), minor(there.st_rdev));
    }
    if (!S_ISCHR(there.st_mode) && stat(path, &there) == 0 && S_ISREG(there.st_mode)) {
        int file = open(path, O_RDONLY);
        CHECK(file >= 0);
        ssize_t length = read(file, text, sizeof text);
        printf(length < 0 ? " reads fail with %d" : " says \"%.*s\"", length < 0 ? errno : (int)length, text);
        close(file);
    }
    char *real = realpath(path, NULL);
    printf(" at %s\n", real ? real : "nowhere");
    free(real);
    struct dirent **names;
    int count = S_ISDIR(there.st_mode) && lstat(path, &there) == 0 && S_ISDIR(there.st_mode)
                    ? scandir(path, &names, NULL, alphasort)
                    : 0;
    for (int i = 0; i < count; i++)
        if (names[i]->d_name[0] != '.') {
            CHECK((size_t)snprintf(below, sizeof below, "%s/%s", path, names[i]->d_name) < sizeof below);
            dump(below);
        }
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "dump") == 0) {
        const char *roots[] = {"/sys/class/infiniband", "/sys/class/infiniband_verbs", "/sys/devices/roce",
                               "/dev/infiniband"};
        for (int i = 0; i < 4; i++)
            dump(roots[i]);
        return 0;
    }
    umask(0);
    FILE *stream = fopen(TYPE, "r");
    CHECK(stream && fgets(type, sizeof type, stream) && strstr(type, "RoCE v"));
    fclose(stream);
    // Twice: the first call of each function looks up that of libc.
    for (int round = 0; round < 2; round++) {
        check_other_files();
        read_one();
        read_an_empty_row();
        stat_files();
        resolve_paths();
        list_directories();
        use_relative_paths();
        check_missing_files();
    }
    puts("fine");
}
