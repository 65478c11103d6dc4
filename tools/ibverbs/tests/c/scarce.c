/* Preloaded: lets allocations fail, to see what a library makes of it. They are counted from the
 * call of alarm() on that tests/c/life.c begins with. SCARCE_AT=N: the N-th fails.
 * SCARCE_FROM=N: it and all that follow do, until the program calls alarm() again.
 * SCARCE_COUNT=1: how many there are is told at the end. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

static atomic_int counting;
static atomic_long count;
static long at, from;

static int fails(void) {
    if (!counting) return 0;
    long number = ++count;
    if (number != at && (!from || number < from)) return 0;
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t size) { return fails() ? NULL : __libc_malloc(size); }

void *calloc(size_t members, size_t size) { return fails() ? NULL : __libc_calloc(members, size); }

void *realloc(void *old, size_t size) { return fails() ? NULL : __libc_realloc(old, size); }

void *aligned_alloc(size_t alignment, size_t size) { return fails() ? NULL : __libc_memalign(alignment, size); }

void *memalign(size_t alignment, size_t size) { return fails() ? NULL : __libc_memalign(alignment, size); }

int posix_memalign(void **place, size_t alignment, size_t size) {
    if (fails()) return ENOMEM;
    return (*place = __libc_memalign(alignment, size)) ? 0 : ENOMEM;
}

unsigned alarm(unsigned seconds) {
    unsigned (*next)(unsigned) = (unsigned (*)(unsigned))dlsym(RTLD_NEXT, "alarm");
    at = getenv("SCARCE_AT") ? atol(getenv("SCARCE_AT")) : 0;
    from = getenv("SCARCE_FROM") ? atol(getenv("SCARCE_FROM")) : 0;
    if (!seconds && getenv("SCARCE_COUNT")) fprintf(stderr, "%ld\n", (long)count);
    counting = seconds > 0;
    return next(seconds);
}
