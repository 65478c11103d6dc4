// The files that a kernel has for its devices, where no mount namespace can show them. `roce run`
// writes them into a directory and preloads this library, which redirects paths of devices to that
// directory: below it are real files and directories, so everything that takes a descriptor works
// on them. All other paths are libc's.
//
// Paths that libc hands out, as from realpath() and getcwd(), lose the directory again.
//
// It is C because open() takes a varying number of arguments.

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

// Programs that were built with checks, or with a libc before 2.33, call these; no header has them.
int __open_2(const char *path, int flags);
int __open64_2(const char *path, int flags);
int __openat_2(int at, const char *path, int flags);
int __openat64_2(int at, const char *path, int flags);
int __xstat(int version, const char *path, struct stat *to);
int __xstat64(int version, const char *path, struct stat64 *to);
int __lxstat(int version, const char *path, struct stat *to);
int __lxstat64(int version, const char *path, struct stat64 *to);
int __fxstatat(int version, int at, const char *path, struct stat *to, int flags);
int __fxstatat64(int version, int at, const char *path, struct stat64 *to, int flags);
ssize_t __readlink_chk(const char *path, char *to, size_t size, size_t room);
ssize_t __readlinkat_chk(int at, const char *path, char *to, size_t size, size_t room);
char *__realpath_chk(const char *path, char *to, size_t room);
char *__getcwd_chk(char *to, size_t size, size_t room);

#define ALL(DO)                                                                                                        \
    DO(open) DO(open64) DO(openat) DO(openat64) DO(__open_2) DO(__open64_2) DO(__openat_2) DO(__openat64_2)            \
    DO(fopen) DO(fopen64) DO(freopen) DO(freopen64) DO(access) DO(eaccess) DO(euidaccess) DO(faccessat)                \
    DO(stat) DO(stat64) DO(lstat) DO(lstat64) DO(fstatat) DO(fstatat64) DO(statx)                                      \
    DO(__xstat) DO(__xstat64) DO(__lxstat) DO(__lxstat64) DO(__fxstatat) DO(__fxstatat64)                              \
    DO(readlink) DO(readlinkat) DO(__readlink_chk) DO(__readlinkat_chk)                                                \
    DO(realpath) DO(__realpath_chk) DO(canonicalize_file_name) DO(getcwd) DO(__getcwd_chk) DO(get_current_dir_name)    \
    DO(opendir) DO(scandir) DO(scandir64) DO(scandirat) DO(scandirat64) DO(glob) DO(glob64) DO(chdir)                  \
    DO(getxattr) DO(lgetxattr) DO(listxattr) DO(llistxattr)

// The same functions of libc, or of what is preloaded behind this: found once, before a program
// forks between others.
#define DECLARE(name) static __typeof__(&name) next_##name;
ALL(DECLARE)

// The directory with the files; a string that is never freed. Null if there is none.
static const char *_Atomic root;

// Called by libibverbs.so.1 when its files have changed.
void roce_files_redirect(const char *path);
void roce_files_redirect(const char *path) {
    const char *now = root;
    if (*path != '/' || strlen(path) >= PATH_MAX / 2 || (now && strcmp(now, path) == 0))
        return;
    const char *copy = strdup(path);
    if (copy)
        root = copy;
}

__attribute__((constructor)) static void find(void) {
#define FIND(name) next_##name = (__typeof__(&name))dlsym(RTLD_NEXT, #name);
    ALL(FIND)
    const char *given = secure_getenv("ROCE_TREE");
    if (given && !root)
        roce_files_redirect(given);
}
// What is preloaded behind this may call it before.
#define NEXT(name) (next_##name ? next_##name : (find(), next_##name))

// Redirected directories: those of src/ibverbs/files.rs.
static const char *const DIRECTORIES[] = {"/sys/class/infiniband", "/sys/class/infiniband_verbs", "/sys/devices/roce",
                                          "/dev/infiniband", "/sys/class/misc/rdma_cm"};
#define CHAR_DEVICES "/dev/infiniband/uverbs"
#define CM_DEVICE "/dev/infiniband/rdma_cm"
#define PARTS 4 // of the longest of them

// A path: as it was given, or where it is redirected to.
struct path {
    const char *to;
    int redirected;
    int char_device; // a link stands for it
    char text[PATH_MAX];
};

// The first directory that a path is below; what follows it is behind *rest. The parts before it
// are none of symbolic links, so "..", "." and "//" mean what they say.
static const char *directory_of(const char *path, const char **rest) {
    char start[64] = "";
    size_t ends[PARTS + 1] = {0}, parts = 0;
    for (const char *at = path; *at;) {
        while (*at == '/')
            at++;
        size_t length = strcspn(at, "/");
        if (length == 0)
            return NULL;
        if (length == 2 && at[0] == '.' && at[1] == '.')
            parts -= parts > 0;
        else if (length != 1 || at[0] != '.') {
            size_t end = ends[parts];
            if (parts == PARTS || end + 1 + length >= sizeof start)
                return NULL;
            start[end] = '/';
            memcpy(start + end + 1, at, length);
            ends[++parts] = end + 1 + length;
        }
        start[ends[parts]] = 0;
        at += length;
        for (size_t i = 0; i < sizeof DIRECTORIES / sizeof *DIRECTORIES; i++)
            if (strcmp(start, DIRECTORIES[i]) == 0) {
                *rest = at;
                return DIRECTORIES[i];
            }
    }
    return NULL;
}

static struct path *redirect(const char *path, struct path *found) {
    found->to = path;
    found->redirected = found->char_device = 0;
    const char *rest, *directory, *to = root;
    if (!to || !path || path[0] != '/' || !(directory = directory_of(path, &rest)))
        return found;
    int length = snprintf(found->text, sizeof found->text, "%s%s%s", to, directory, rest);
    if (length < 0 || (size_t)length >= sizeof found->text)
        return found;
    found->to = found->text;
    found->redirected = 1;
    const char *device = found->text + strlen(to);
    found->char_device =
        strncmp(device, CHAR_DEVICES, strlen(CHAR_DEVICES)) == 0 || strcmp(device, CM_DEVICE) == 0;
    return found;
}
#define REDIRECT(path)                                                                                                 \
    struct path found_;                                                                                                \
    struct path *found = redirect(path, &found_);

// What is left of a path that libc found, without the directory of the files; null if it is not
// below it.
static char *strip(char *path) {
    const char *to = root;
    size_t length = to ? strlen(to) : 0;
    return length && strncmp(path, to, length) == 0 && path[length] == '/' ? path + length : NULL;
}

static char *stripped(char *path) {
    char *left = path ? strip(path) : NULL;
    if (left)
        memmove(path, left, strlen(left) + 1);
    return path;
}

// No file of sysfs here can be written, nor a new one made, not even by root.
static int is_denied(const struct path *found, int flags) {
    int denied = found->redirected && !found->char_device &&
                 ((flags & O_ACCMODE) != O_RDONLY || flags & (O_CREAT | O_TRUNC)) && !(flags & O_PATH);
    if (denied)
        errno = flags & O_CREAT || NEXT(access)(found->to, F_OK) == 0 ? EACCES : ENOENT;
    return denied;
}

// The device of librdmacm is opened by libibverbs.so.1, which is behind this library and has a
// function of this name, too.
static int opens_cm(const struct path *found) {
    const char *to = root;
    return found->char_device && to && strcmp(found->to + strlen(to), CM_DEVICE) == 0;
}
static int open_cm(int flags) {
    return NEXT(open)(CM_DEVICE, flags);
}

#define OPENS(name, parameters, arguments)                                                                             \
    int name parameters {                                                                                              \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        int mode = flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(rest, int) : 0;                        \
        va_end(rest);                                                                                                  \
        REDIRECT(path)                                                                                                 \
        if (opens_cm(found))                                                                                           \
            return open_cm(flags);                                                                                     \
        return is_denied(found, flags) ? -1 : NEXT(name) arguments;                                                    \
    }
OPENS(open, (const char *path, int flags, ...), (found->to, flags, mode))
OPENS(open64, (const char *path, int flags, ...), (found->to, flags, mode))
OPENS(openat, (int at, const char *path, int flags, ...), (at, found->to, flags, mode))
OPENS(openat64, (int at, const char *path, int flags, ...), (at, found->to, flags, mode))

#define OPENS_CHECKED(name, parameters, arguments)                                                                     \
    int name parameters {                                                                                              \
        REDIRECT(path)                                                                                                 \
        if (opens_cm(found))                                                                                           \
            return open_cm(flags);                                                                                     \
        return is_denied(found, flags) ? -1 : NEXT(name) arguments;                                                    \
    }
OPENS_CHECKED(__open_2, (const char *path, int flags), (found->to, flags))
OPENS_CHECKED(__open64_2, (const char *path, int flags), (found->to, flags))
OPENS_CHECKED(__openat_2, (int at, const char *path, int flags), (at, found->to, flags))
OPENS_CHECKED(__openat64_2, (int at, const char *path, int flags), (at, found->to, flags))

#define OPENS_STREAM(name, parameters, arguments)                                                                      \
    FILE *name parameters {                                                                                            \
        REDIRECT(path)                                                                                                 \
        if (found->redirected && is_denied(found, strpbrk(mode, "wa+") ? O_RDWR : O_RDONLY))                           \
            return NULL;                                                                                               \
        return NEXT(name) arguments;                                                                                   \
    }
OPENS_STREAM(fopen, (const char *path, const char *mode), (found->to, mode))
OPENS_STREAM(fopen64, (const char *path, const char *mode), (found->to, mode))
OPENS_STREAM(freopen, (const char *path, const char *mode, FILE *stream), (found->to, mode, stream))
OPENS_STREAM(freopen64, (const char *path, const char *mode, FILE *stream), (found->to, mode, stream))

#define REDIRECTS(type, name, parameters, arguments)                                                                   \
    type name parameters {                                                                                             \
        REDIRECT(path)                                                                                                 \
        return NEXT(name) arguments;                                                                                   \
    }
REDIRECTS(int, access, (const char *path, int how), (found->to, how))
REDIRECTS(int, eaccess, (const char *path, int how), (found->to, how))
REDIRECTS(int, euidaccess, (const char *path, int how), (found->to, how))
REDIRECTS(int, faccessat, (int at, const char *path, int how, int flags), (at, found->to, how, flags))
REDIRECTS(int, stat, (const char *path, struct stat *to), (found->to, to))
REDIRECTS(int, stat64, (const char *path, struct stat64 *to), (found->to, to))
REDIRECTS(int, __xstat, (int version, const char *path, struct stat *to), (version, found->to, to))
REDIRECTS(int, __xstat64, (int version, const char *path, struct stat64 *to), (version, found->to, to))
REDIRECTS(int, chdir, (const char *path), (found->to))
REDIRECTS(DIR *, opendir, (const char *path), (found->to))
REDIRECTS(int, scandir,
          (const char *path, struct dirent ***to, int (*filter)(const struct dirent *),
           int (*compare)(const struct dirent **, const struct dirent **)),
          (found->to, to, filter, compare))
REDIRECTS(int, scandir64,
          (const char *path, struct dirent64 ***to, int (*filter)(const struct dirent64 *),
           int (*compare)(const struct dirent64 **, const struct dirent64 **)),
          (found->to, to, filter, compare))
REDIRECTS(int, scandirat,
          (int at, const char *path, struct dirent ***to, int (*filter)(const struct dirent *),
           int (*compare)(const struct dirent **, const struct dirent **)),
          (at, found->to, to, filter, compare))
REDIRECTS(int, scandirat64,
          (int at, const char *path, struct dirent64 ***to, int (*filter)(const struct dirent64 *),
           int (*compare)(const struct dirent64 **, const struct dirent64 **)),
          (at, found->to, to, filter, compare))
REDIRECTS(ssize_t, getxattr, (const char *path, const char *name, void *to, size_t size), (found->to, name, to, size))
REDIRECTS(ssize_t, lgetxattr, (const char *path, const char *name, void *to, size_t size), (found->to, name, to, size))
REDIRECTS(ssize_t, listxattr, (const char *path, char *to, size_t size), (found->to, to, size))
REDIRECTS(ssize_t, llistxattr, (const char *path, char *to, size_t size), (found->to, to, size))

// A character device is looked at behind the link that stands for it.
#define LOOKS(name, follows, parameters, arguments)                                                                    \
    int name parameters {                                                                                              \
        REDIRECT(path)                                                                                                 \
        return found->char_device ? NEXT(follows) arguments : NEXT(name) arguments;                                    \
    }
LOOKS(lstat, stat, (const char *path, struct stat *to), (found->to, to))
LOOKS(lstat64, stat64, (const char *path, struct stat64 *to), (found->to, to))
LOOKS(__lxstat, __xstat, (int version, const char *path, struct stat *to), (version, found->to, to))
LOOKS(__lxstat64, __xstat64, (int version, const char *path, struct stat64 *to), (version, found->to, to))

#define LOOKS_AT(name, parameters, arguments)                                                                          \
    int name parameters {                                                                                              \
        REDIRECT(path)                                                                                                 \
        if (found->char_device)                                                                                        \
            flags &= ~AT_SYMLINK_NOFOLLOW;                                                                             \
        return NEXT(name) arguments;                                                                                   \
    }
LOOKS_AT(fstatat, (int at, const char *path, struct stat *to, int flags), (at, found->to, to, flags))
LOOKS_AT(fstatat64, (int at, const char *path, struct stat64 *to, int flags), (at, found->to, to, flags))
LOOKS_AT(__fxstatat, (int version, int at, const char *path, struct stat *to, int flags),
         (version, at, found->to, to, flags))
LOOKS_AT(__fxstatat64, (int version, int at, const char *path, struct stat64 *to, int flags),
         (version, at, found->to, to, flags))
LOOKS_AT(statx, (int at, const char *path, int flags, unsigned mask, struct statx *to),
         (at, found->to, flags, mask, to))

// A link's text. Those of /proc/self/fd and /proc/self/cwd lose the directory.
static ssize_t link_text(const struct path *found, char *to, ssize_t length) {
    if (length < 0)
        return length;
    if (found->char_device) {
        errno = EINVAL;
        return -1;
    }
    const char *now = root;
    ssize_t more = now ? (ssize_t)strlen(now) : 0;
    if (more == 0 || length <= more || strncmp(to, now, more) != 0 || to[more] != '/')
        return length;
    memmove(to, to + more, length - more);
    return length - more;
}
#define READS_LINK(name, parameters, arguments)                                                                        \
    ssize_t name parameters {                                                                                          \
        REDIRECT(path)                                                                                                 \
        return link_text(found, to, NEXT(name) arguments);                                                             \
    }
READS_LINK(readlink, (const char *path, char *to, size_t size), (found->to, to, size))
READS_LINK(readlinkat, (int at, const char *path, char *to, size_t size), (at, found->to, to, size))
READS_LINK(__readlink_chk, (const char *path, char *to, size_t size, size_t room), (found->to, to, size, room))
READS_LINK(__readlinkat_chk, (int at, const char *path, char *to, size_t size, size_t room),
           (at, found->to, to, size, room))

// Behind the link of a character device is another, which it is not.
static char *of_char_device(const struct path *found, char *to) {
    struct stat there;
    char *left = strip((char *)found->text);
    if (NEXT(stat)(found->to, &there) != 0 || !left)
        return NULL;
    return to ? strcpy(to, left) : strdup(left);
}
char *realpath(const char *path, char *to) {
    REDIRECT(path)
    return found->char_device ? of_char_device(found, to) : stripped(NEXT(realpath)(found->to, to));
}
char *__realpath_chk(const char *path, char *to, size_t room) {
    REDIRECT(path)
    return found->char_device ? of_char_device(found, to) : stripped(NEXT(__realpath_chk)(found->to, to, room));
}
char *canonicalize_file_name(const char *path) {
    REDIRECT(path)
    return found->char_device ? of_char_device(found, NULL) : stripped(NEXT(canonicalize_file_name)(found->to));
}

// Where the process is, if that is below the directory of the files.
static const char *current(char *text, size_t size) {
    int error = errno;
    char *path = NEXT(getcwd)(text, size);
    errno = error;
    return path ? strip(path) : NULL;
}
char *getcwd(char *to, size_t size) {
    char text[PATH_MAX];
    const char *path = current(text, sizeof text);
    if (!path)
        return NEXT(getcwd)(to, size);
    if (!to && size == 0)
        return strdup(path);
    if (strlen(path) >= size) {
        errno = size ? ERANGE : EINVAL;
        return NULL;
    }
    to = to ? to : malloc(size);
    return to ? strcpy(to, path) : NULL;
}
char *__getcwd_chk(char *to, size_t size, size_t room) {
    char text[PATH_MAX];
    return size <= room && current(text, sizeof text) ? getcwd(to, size) : NEXT(__getcwd_chk)(to, size, room);
}
char *get_current_dir_name(void) {
    char text[PATH_MAX];
    const char *path = current(text, sizeof text);
    return path ? strdup(path) : NEXT(get_current_dir_name)();
}

// libc's glob() looks at files by itself, unless it is given functions for that.
#define GLOBS(name, structure, read, look)                                                                             \
    int name(const char *pattern, int flags, int (*error)(const char *, int), structure *to) {                         \
        const char *rest;                                                                                              \
        if (root && pattern && pattern[0] == '/' && !(flags & GLOB_ALTDIRFUNC) && directory_of(pattern, &rest)) {      \
            to->gl_opendir = (void *(*)(const char *))opendir;                                                         \
            to->gl_readdir = (__typeof__(to->gl_readdir))read;                                                         \
            to->gl_closedir = (void (*)(void *))closedir;                                                              \
            to->gl_stat = stat##look;                                                                                  \
            to->gl_lstat = lstat##look;                                                                                \
            flags |= GLOB_ALTDIRFUNC;                                                                                  \
        }                                                                                                              \
        return NEXT(name)(pattern, flags, error, to);                                                                  \
    }
GLOBS(glob, glob_t, readdir, )
GLOBS(glob64, glob64_t, readdir64, 64)
