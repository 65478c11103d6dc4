// The files that a kernel has for its devices. Some programs, UCX and with it most of MPI among them, do not open a device
// before they have seen /dev/infiniband/uverbs0, and read in /sys/class/infiniband of which kind its addresses are. No kernel
// has soft devices, and no ordinary user can put files there; so this, which `roce run` has preloaded, answers for those
// paths in libc's place, with what ibv_read_sysfs_file() says. All other paths are libc's, as ever.
//
// It is C because open() takes a varying number of arguments.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define CLASS "/sys/class/infiniband/"
#define VERBS "/sys/class/infiniband_verbs/"
#define NODES "/dev/infiniband/"

// Whether libc is asked by what answers here.
static __thread int busy;

static int begins(const char *path, const char *with) { return strncmp(path, with, strlen(with)) == 0; }

// Programs that were built with checks, or with a libc before 2.33, call these; no header has them.
int __open_2(const char *path, int flags);
int __open64_2(const char *path, int flags);
int __openat_2(int at, const char *path, int flags);
int __openat64_2(int at, const char *path, int flags);
int __xstat(int version, const char *path, struct stat *there);
int __xstat64(int version, const char *path, struct stat64 *there);
int __lxstat(int version, const char *path, struct stat *there);
int __lxstat64(int version, const char *path, struct stat64 *there);
int __fxstatat(int version, int at, const char *path, struct stat *there, int flags);
int __fxstatat64(int version, int at, const char *path, struct stat64 *there, int flags);

#define ALL(DO)                                                                                                        \
    DO(open) DO(open64) DO(openat) DO(openat64) DO(__open_2) DO(__open64_2) DO(__openat_2) DO(__openat64_2)            \
    DO(fopen) DO(fopen64) DO(access) DO(faccessat) DO(stat) DO(stat64) DO(lstat) DO(lstat64) DO(fstatat)               \
    DO(fstatat64) DO(statx) DO(__xstat) DO(__xstat64) DO(__lxstat) DO(__lxstat64) DO(__fxstatat) DO(__fxstatat64)

// The same functions of libc, or of whoever is preloaded behind this: found once, before a program forks between others.
#define DECLARE(name) static __typeof__(&name) next_##name;
ALL(DECLARE)
__attribute__((constructor)) static void find(void) {
#define FIND(name) next_##name = (__typeof__(&name))dlsym(RTLD_NEXT, #name);
    ALL(FIND)
}
// What is preloaded behind this may call it before.
#define NEXT(name) (next_##name ? next_##name : (find(), next_##name))

// What a soft device has to say in a file; how many bytes, or less than none if there is no such file. The word before the
// path is between this and the library: files of devices that a kernel has are not meant.
static int read_soft(const char *path, const char *file, char *text, size_t room) {
    char directory[PATH_MAX];
    int (*read_file)(const char *, const char *, char *, size_t) = 0;
    void *library = dlopen("libibverbs.so.1", RTLD_NOW);
    if (library)
        *(void **)&read_file = dlsym(library, "ibv_read_sysfs_file");
    snprintf(directory, sizeof directory, "soft:%s", path);
    return read_file ? read_file(directory, file, text, room) : -1;
}

// A descriptor of what a soft device has at this path, which is one of those below: of a file that says the same, or of
// another device or directory to look at. Less than none if it has nothing there.
static int open_soft(const char *path, int flags) {
    char text[PATH_MAX];
    if (begins(path, NODES)) {
        char directory[PATH_MAX];
        snprintf(directory, sizeof directory, VERBS "%s", path + strlen(NODES));
        return read_soft(directory, "ibdev", text, sizeof text) > 0 ? NEXT(open)("/dev/null", flags) : -1;
    }
    if (read_soft(path, "node_type", text, sizeof text) > 0)
        return NEXT(open)("/sys/class", flags);
    int length = read_soft("", path + 1, text, sizeof text - 1); // which adds the slash
    if (length < 0 || (flags & O_ACCMODE) != O_RDONLY)
        return -1;
    text[length++] = '\n';
    int file = memfd_create("sysfs", flags & O_CLOEXEC ? MFD_CLOEXEC : 0);
    if (file >= 0 && (write(file, text, length) != length || lseek(file, 0, SEEK_SET) != 0)) {
        close(file);
        return -1;
    }
    return file;
}

// The same for any path: less than none if it is libc's business.
static int soft(const char *path, int flags) {
    if (busy || !path || !(begins(path, CLASS) || begins(path, VERBS) || begins(path, NODES)))
        return -1;
    int error = errno;
    busy = 1;
    int file = open_soft(path, flags);
    busy = 0;
    errno = error;
    return file;
}

// Whoever opens a file gets that descriptor.
#define OPENS(name, parameters, arguments)                                                                             \
    int name parameters {                                                                                              \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        int mode = flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(rest, int) : 0;                        \
        va_end(rest);                                                                                                  \
        int file = soft(path, flags);                                                                                  \
        return file >= 0 ? file : NEXT(name) arguments;                                                                \
    }
OPENS(open, (const char *path, int flags, ...), (path, flags, mode))
OPENS(open64, (const char *path, int flags, ...), (path, flags, mode))
OPENS(openat, (int at, const char *path, int flags, ...), (at, path, flags, mode))
OPENS(openat64, (int at, const char *path, int flags, ...), (at, path, flags, mode))

#define OPENS_CHECKED(name, parameters, arguments)                                                                     \
    int name parameters {                                                                                              \
        int file = soft(path, flags);                                                                                  \
        return file >= 0 ? file : NEXT(name) arguments;                                                                \
    }
OPENS_CHECKED(__open_2, (const char *path, int flags), (path, flags))
OPENS_CHECKED(__open64_2, (const char *path, int flags), (path, flags))
OPENS_CHECKED(__openat_2, (int at, const char *path, int flags), (at, path, flags))
OPENS_CHECKED(__openat64_2, (int at, const char *path, int flags), (at, path, flags))

#define OPENS_STREAM(name)                                                                                             \
    FILE *name(const char *path, const char *mode) {                                                                   \
        int file = strpbrk(mode, "wa+") ? -1 : soft(path, strchr(mode, 'e') ? O_CLOEXEC : 0);                          \
        if (file < 0)                                                                                                  \
            return NEXT(name)(path, mode);                                                                             \
        FILE *stream = fdopen(file, mode);                                                                             \
        if (!stream)                                                                                                   \
            close(file);                                                                                               \
        return stream;                                                                                                 \
    }
OPENS_STREAM(fopen)
OPENS_STREAM(fopen64)

// Whether one may do so with it: devices may be written to, files that say something are read only.
static int may(int file, int how) {
    struct stat there;
    int denied = how & W_OK && fstat(file, &there) == 0 && !S_ISCHR(there.st_mode);
    if (denied)
        errno = EACCES;
    return denied ? -1 : 0;
}

// Whoever looks at a file looks at what is behind that descriptor.
#define LOOKS(name, parameters, arguments, looked)                                                                     \
    int name parameters {                                                                                              \
        int file = soft(path, O_CLOEXEC);                                                                              \
        if (file < 0)                                                                                                  \
            return NEXT(name) arguments;                                                                               \
        int status = looked;                                                                                           \
        close(file);                                                                                                   \
        return status;                                                                                                 \
    }
LOOKS(access, (const char *path, int how), (path, how), may(file, how))
LOOKS(faccessat, (int at, const char *path, int how, int flags), (at, path, how, flags), may(file, how))
LOOKS(stat, (const char *path, struct stat *there), (path, there), fstat(file, there))
LOOKS(stat64, (const char *path, struct stat64 *there), (path, there), fstat64(file, there))
LOOKS(lstat, (const char *path, struct stat *there), (path, there), fstat(file, there))
LOOKS(lstat64, (const char *path, struct stat64 *there), (path, there), fstat64(file, there))
LOOKS(fstatat, (int at, const char *path, struct stat *there, int flags), (at, path, there, flags), fstat(file, there))
LOOKS(fstatat64, (int at, const char *path, struct stat64 *there, int flags), (at, path, there, flags),
      fstat64(file, there))
LOOKS(statx, (int at, const char *path, int flags, unsigned mask, struct statx *there), (at, path, flags, mask, there),
      NEXT(statx)(file, "", flags | AT_EMPTY_PATH, mask, there))
LOOKS(__xstat, (int version, const char *path, struct stat *there), (version, path, there), fstat(file, there))
LOOKS(__xstat64, (int version, const char *path, struct stat64 *there), (version, path, there), fstat64(file, there))
LOOKS(__lxstat, (int version, const char *path, struct stat *there), (version, path, there), fstat(file, there))
LOOKS(__lxstat64, (int version, const char *path, struct stat64 *there), (version, path, there), fstat64(file, there))
LOOKS(__fxstatat, (int version, int at, const char *path, struct stat *there, int flags),
      (version, at, path, there, flags), fstat(file, there))
LOOKS(__fxstatat64, (int version, int at, const char *path, struct stat64 *there, int flags),
      (version, at, path, there, flags), fstat64(file, there))
