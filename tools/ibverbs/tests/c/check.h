/* An assertion: says what failed, and where, and ends the process. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#define CHECK(what)                                                                                                    \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            fprintf(stderr, "%s:%d: %s: errno %d\n", __FILE__, __LINE__, #what, errno);                                \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)

#endif
