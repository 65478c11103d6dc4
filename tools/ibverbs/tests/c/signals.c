/* Every signal, while the program sleeps and while it is busy: a thread of the program gets it,
 * never one of the library. Signals while a thread waits for an event, and actions that a child
 * of vfork changes. One device. */
#define _GNU_SOURCE /* gettid */
#include "verbs.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/signalfd.h>
#include <sys/wait.h>

static struct end end;
static atomic_int handled_by;

static void handler(int signal) {
    (void)signal;
    handled_by = gettid();
}

/* Signals that a fault raises in the thread that caused it: threads of the library do not block
 * them. */
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
    /* A signal that stops by default would stop the process here if a thread of the library had
     * it pending. */
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

/* While the program's only thread handles one signal and has others pending, the kernel looks
 * for another thread. */
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

static atomic_int waiter, finished;
static int waited, waited_errno;

static void *wait_for_event(void *channel) {
    struct ibv_cq *cq;
    void *cookie;
    waiter = gettid();
    waited = ibv_get_cq_event(channel, &cq, &cookie);
    waited_errno = errno;
    if (!waited) ibv_ack_cq_events(cq, 1);
    finished = 1;
    return NULL;
}

/* Whether the waiting thread sleeps. */
static int sleeps(void) {
    char path[64], state = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)waiter);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    CHECK(fscanf(file, "%*d %*s %c", &state) == 1);
    fclose(file);
    return state == 'S';
}

/* A thread waits for an event while signals come. A kernel's read goes on if SA_RESTART says so. */
static void interrupted(int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    CHECK(!sigaction(SIGUSR1, &action, NULL));
    struct ibv_comp_channel *channel = ibv_create_comp_channel(end.context);
    struct ibv_cq *cq = ibv_create_cq(end.context, 4, NULL, channel, 0);
    struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = {1, 1, 1, 1, 0}};
    struct ibv_qp *qp = ibv_create_qp(end.pd, &init);
    CHECK(channel && cq && qp && !ibv_req_notify_cq(cq, 0));
    pthread_t thread;
    waiter = finished = 0;
    CHECK(!pthread_create(&thread, NULL, wait_for_event, channel));
    for (int i = 0; i < 5 && !finished; i++) {
        while (!finished && (!waiter || !sleeps())) usleep(1000);
        handled_by = 0;
        if (!finished) CHECK(!pthread_kill(thread, SIGUSR1));
        while (!finished && !handled_by) usleep(1000);
    }
    struct ibv_recv_wr receive = {.wr_id = 1}, *bad;
    fail_qp(qp);
    CHECK(!ibv_post_recv(qp, &receive, &bad));
    CHECK(!pthread_join(thread, NULL));
    if (flags & SA_RESTART)
        CHECK(waited == 0);
    else
        CHECK(waited == -1 && waited_errno == EINTR);
    CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(channel));
}

/* A child of vfork shares the program's memory, but has actions of its own. */
static void vforked_child_keeps_its_actions_to_itself(void) {
    struct sigaction own = {.sa_handler = handler}, fresh = {.sa_handler = SIG_DFL}, seen;
    CHECK(!sigaction(SIGSEGV, &own, NULL));
    pid_t child = vfork();
    if (!child) {
        sigaction(SIGSEGV, &fresh, NULL);
        kill(getpid(), SIGSEGV);
        _exit(0);
    }
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    CHECK(!sigaction(SIGSEGV, NULL, &seen) && seen.sa_handler == handler);
    /* A child of fork has a copy of everything. */
    child = fork();
    if (!child) {
        CHECK(!sigaction(SIGSEGV, NULL, &seen) && seen.sa_handler == handler);
        CHECK(!sigaction(SIGSEGV, &fresh, &seen) && seen.sa_handler == handler);
        CHECK(!sigaction(SIGSEGV, NULL, &seen) && seen.sa_handler == SIG_DFL);
        _exit(0);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status));
    CHECK(!sigaction(SIGSEGV, NULL, &seen) && seen.sa_handler == handler);
    CHECK(!sigaction(SIGSEGV, &fresh, NULL));
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
    interrupted(0);
    interrupted(SA_RESTART);
    vforked_child_keeps_its_actions_to_itself();
    destroy_end(&end);
    puts("signals: fine");
}
