/* Every signal, while the program sleeps and while it is busy: a thread of the program gets it, never one of the library.
 * One device. */
#define _GNU_SOURCE /* gettid */
#include "verbs.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/signalfd.h>

static struct end end;
static volatile sig_atomic_t handled_by;

static void handler(int signal) {
    (void)signal;
    handled_by = gettid();
}

/* Signals that a fault raises in the thread that caused it: threads of the library do not block them. */
static int is_synchronous(int signal) {
    return signal == SIGSEGV || signal == SIGBUS || signal == SIGFPE || signal == SIGILL || signal == SIGTRAP ||
           signal == SIGSYS;
}

/* Signals that a program can get at all: the C library keeps two to itself. */
static int is_usable(int signal) {
    return signal != SIGKILL && signal != SIGSTOP && (signal < 32 || signal >= SIGRTMIN);
}

static void poll_for_a_while(void) {
    struct ibv_wc wc;
    for (int i = 0; i < 300; i++) CHECK(ibv_poll_cq(end.sends, 1, &wc) == 0);
}

/* It is blocked, and waits until the program asks for it: by default it would end the program. */
static void blocked(int signal, int busy) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, signal);
    CHECK(!pthread_sigmask(SIG_BLOCK, &set, NULL));
    int fd = signalfd(-1, &set, SFD_CLOEXEC);
    CHECK(fd >= 0 && !kill(getpid(), signal));
    if (busy) poll_for_a_while();
    struct signalfd_siginfo info;
    CHECK(read(fd, &info, sizeof info) == sizeof info && (int)info.ssi_signo == signal);
    close(fd);
    /* A signal that stops by default would stop the process here if a thread of the library had it pending. */
    CHECK(!pthread_sigmask(SIG_UNBLOCK, &set, NULL));
}

/* Its handler runs in the program's only thread. */
static void handled(int signal_number, int busy) {
    struct sigaction action = {.sa_handler = handler}, before;
    CHECK(!sigaction(signal_number, &action, &before));
    handled_by = 0;
    if (busy) poll_for_a_while();
    CHECK(!kill(getpid(), signal_number));
    while (!handled_by) poll_for_a_while();
    CHECK(handled_by == gettid());
    CHECK(!sigaction(signal_number, &before, NULL));
}

/* While the program's only thread handles one signal and has others pending, the kernel looks for another thread. */
static void many_at_once(void) {
    struct sigaction action = {.sa_handler = handler};
    sigset_t set;
    sigemptyset(&set);
    for (int signal = SIGRTMIN; signal < SIGRTMIN + 8; signal++) {
        CHECK(!sigaction(signal, &action, NULL));
        sigaddset(&set, signal);
    }
    CHECK(!pthread_sigmask(SIG_BLOCK, &set, NULL));
    for (int round = 0; round < 50; round++)
        for (int signal = SIGRTMIN; signal < SIGRTMIN + 8; signal++) CHECK(!kill(getpid(), signal));
    handled_by = 0;
    CHECK(!pthread_sigmask(SIG_UNBLOCK, &set, NULL));
    CHECK(handled_by == gettid());
}

int main(void) {
    make_end(&end, 0);
    for (int signal = 1; signal <= SIGRTMAX; signal++) {
        if (!is_usable(signal)) continue;
        for (int busy = 0; busy < 2; busy++) {
            if (!is_synchronous(signal)) blocked(signal, busy);
            handled(signal, busy);
        }
    }
    many_at_once();
    unmake_end(&end);
    puts("signals: fine");
}
