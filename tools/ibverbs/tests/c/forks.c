/* Forks of a program that has devices open, and programs that are killed. Four devices. */
#define _GNU_SOURCE /* pipe2 */
#include "verbs.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>

static struct end here, there;

/* A child has ended as it should. */
static void ended_well(pid_t child) {
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Of what is open here a child has nothing: every call says so at once, and none of them
 * disturbs this process. */
static void child_that_tries(void) {
    struct ibv_wc wc;
    CHECK(ibv_poll_cq(here.sends, 1, &wc) < 0);
    CHECK(post_send(&here, 7) == ENODEV);
    CHECK(post_receive(&there, 7) == ENODEV);
    CHECK(!ibv_alloc_pd(here.context) && errno == ENODEV);
    CHECK(ibv_destroy_qp(here.qp) == ENODEV);
    CHECK(ibv_dereg_mr(here.mr) == ENODEV);
    CHECK(ibv_destroy_cq(here.sends) == ENODEV);
    CHECK(ibv_dealloc_pd(here.pd) == ENODEV);
    CHECK(ibv_close_device(here.context) == ENODEV);
    /* The device is opened by this process, too, and shares its address. */
    struct ibv_context *own = open_device(0);
    CHECK(own && !ibv_close_device(own));
}

/* A device of its own that no process has open, and a device that was listed before the fork. */
static void child_that_opens(struct ibv_device *listed) {
    struct ibv_context *context = ibv_open_device(listed);
    CHECK(context && !ibv_close_device(context));
    static struct end one, other;
    struct address a = make_end(&one, 2), b = make_end(&other, 3);
    connect_end(&one, &b, 7);
    connect_end(&other, &a, 7);
    exchange(&one, &other);
    destroy_end(&one);
    destroy_end(&other);
}

/* No descriptor of the library's is left in a program that a child becomes. */
static void child_that_becomes_another(int before) {
    char text[99];
    snprintf(text, sizeof text, "test $(ls /proc/self/fd | wc -l) -le %d", before);
    execl("/bin/sh", "sh", "-c", text, (char *)NULL);
    CHECK(!"sh is there");
}

/* A child has closed its copies of the library's sockets, and uses their numbers for files of
 * its own. Its own child must not close those. */
static void child_that_forks(void) {
    int files[64];
    for (int i = 0; i < 64; i++)
        CHECK((files[i] = open("/dev/null", O_RDONLY)) >= 0);
    pid_t child = fork();
    if (child == 0) {
        for (int i = 0; i < 64; i++)
            CHECK(fcntl(files[i], F_GETFD) >= 0);
        _exit(0);
    }
    ended_well(child);
}

static void forks(void) {
    CHECK(!ibv_fork_init());
    /* ls has one more, for the directory, as descriptors() has; it does not count . and .. */
    int before = descriptors() - 2;
    int count;
    struct ibv_device **list = ibv_get_device_list(&count);
    CHECK(list && count == 4);
    struct address a = make_end(&here, 0), b = make_end(&there, 1);
    connect_end(&here, &b, 7);
    connect_end(&there, &a, 7);
    exchange(&here, &there);

    int lives[2];
    CHECK(!pipe2(lives, O_CLOEXEC));
    pid_t idle = fork();
    if (idle == 0) { /* never touches anything, for as long as its parent is there */
        char byte;
        close(lives[1]);
        _exit(read(lives[0], &byte, 1) == 0 ? 0 : 1);
    }
    for (int kind = 0; kind < 6; kind++) {
        pid_t child = fork();
        if (child == 0) {
            if (kind == 0) _exit(0);
            if (kind == 1) exit(0); /* with all that is to be done at the end of a program */
            if (kind == 2) child_that_tries();
            if (kind == 3) child_that_opens(list[2]);
            if (kind == 5) child_that_forks();
            if (kind == 4) child_that_becomes_another(before + 2);
            exit(0);
        }
        /* While the child does what it does, and afterwards. */
        for (int i = 0; i < 100; i++) exchange(&here, &there);
        ended_well(child);
        for (int i = 0; i < 100; i++) exchange(&there, &here);
    }
    destroy_end(&here);
    destroy_end(&there);
    ibv_free_device_list(list);
    close(lives[1]);
    ended_well(idle);
}

/* A process with one end, which tells how it is called, hears of the other end, and is killed. */
static pid_t victim(const int to_it[2], const int from_it[2]) {
    pid_t child = fork();
    if (child == 0) {
        static struct end end;
        struct address own = make_end(&end, 1), other;
        CHECK(write(from_it[1], &own, sizeof own) == sizeof own);
        CHECK(read(to_it[0], &other, sizeof other) == sizeof other);
        connect_end(&end, &other, 7);
        CHECK(!post_receive(&end, 1));
        CHECK(write(from_it[1], "k", 1) == 1);
        for (;;) pause();
    }
    return child;
}

/* The peer of a process that was killed gets an error, and its address is free at once, again
 * and again. */
static void kills(void) {
    for (int round = 0; round < 3; round++) {
        int to_it[2], from_it[2];
        CHECK(!pipe(to_it) && !pipe(from_it));
        pid_t child = victim(to_it, from_it);
        struct address own = make_end(&here, 0), other;
        CHECK(read(from_it[0], &other, sizeof other) == sizeof other);
        connect_end(&here, &other, 1);
        CHECK(write(to_it[1], &own, sizeof own) == sizeof own);
        char byte;
        CHECK(read(from_it[0], &byte, 1) == 1);
        CHECK(!post_send(&here, 1));
        CHECK(next(here.sends).status == IBV_WC_SUCCESS);
        CHECK(!kill(child, SIGKILL) && waitpid(child, NULL, 0) == child);
        CHECK(!post_send(&here, 2));
        CHECK(next(here.sends).status == IBV_WC_RETRY_EXC_ERR);
        destroy_end(&here);
        for (int i = 0; i < 2; i++) close(to_it[i]), close(from_it[i]);
    }
}

/* A device can be opened again while a child lives that was forked when it was open. */
static void reopen(void) {
    make_end(&here, 0);
    int lives[2];
    CHECK(!pipe2(lives, O_CLOEXEC));
    pid_t idle = fork();
    if (idle == 0) {
        char byte;
        close(lives[1]);
        _exit(read(lives[0], &byte, 1) == 0 ? 0 : 1);
    }
    destroy_end(&here);
    make_end(&here, 0);
    destroy_end(&here);
    close(lives[1]);
    ended_well(idle);
}

#ifndef ALLOCATOR_LOCKED_IN_CHILDREN
static atomic_int stop;

static void *lists_devices(void *unused) {
    while (!stop) {
        int count;
        struct ibv_device **list = ibv_get_device_list(&count);
        CHECK(list && count == 4);
        for (int i = 0; i < count; i++) ibv_get_device_guid(list[i]);
        ibv_free_device_list(list);
    }
    return unused;
}

/* Children list devices, too, while other threads of their parent did so when they were forked;
 * with a device open in the parent, and without. */
static void forks_while_others_list(int open) {
    pthread_t threads[2];
    if (open) make_end(&here, 0);
    stop = 0;
    for (int i = 0; i < 2; i++) CHECK(!pthread_create(&threads[i], NULL, lists_devices, NULL));
    for (int round = 0; round < 60; round++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(20); /* a child that waits for a thread that it does not have is killed */
            int count;
            struct ibv_device **list = ibv_get_device_list(&count);
            CHECK(list && count == 4 && ibv_get_device_guid(list[0]));
            _exit(0);
        }
        ended_well(child);
    }
    stop = 1;
    for (int i = 0; i < 2; i++) CHECK(!pthread_join(threads[i], NULL));
    if (open) destroy_end(&here);
}
#endif

int main(void) {
#ifndef ALLOCATOR_LOCKED_IN_CHILDREN /* tools/ibverbs/sanitize says why */
    forks_while_others_list(0);
    forks_while_others_list(1);
#endif
    reopen();
    kills();
    forks();
    puts("forks: fine");
}
