/* Memory that a program takes away while it is registered, in every way and under every
 * operation, at either end: requests fail with an access error, and the program lives. Its own
 * handlers of faults see its own faults, and no others.
 *
 * With the argument `verbose`, the matrix is printed. */
#define _GNU_SOURCE
#include "verbs.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { PAGE = 4096, LENGTH = 2 * PAGE };
static const int ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
static struct ibv_context *contexts[2];
static struct ibv_pd *pds[2];
static int verbose;

/* A connected pair. A queue pair that failed is not used again. */
struct half {
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct address address;
};

static void make_pair(struct half half[2]) {
    for (int i = 0; i < 2; i++) {
        CHECK((half[i].cq = ibv_create_cq(contexts[i], 16, NULL, NULL, 0)));
        struct ibv_qp_init_attr init = {
            .send_cq = half[i].cq,
            .recv_cq = half[i].cq,
            .qp_type = IBV_QPT_RC,
            .sq_sig_all = 1,
            .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
        };
        CHECK((half[i].qp = ibv_create_qp(pds[i], &init)));
        half[i].address.qpn = half[i].qp->qp_num;
        CHECK(!ibv_query_gid(contexts[i], 1, 0, &half[i].address.gid));
    }
    for (int i = 0; i < 2; i++) {
        struct end end = {.qp = half[i].qp};
        connect_end(&end, &half[1 - i].address, 7);
        struct ibv_qp_attr attr = {.qp_access_flags = ALL};
        CHECK(!ibv_modify_qp(half[i].qp, &attr, IBV_QP_ACCESS_FLAGS));
    }
}

static void destroy_pair(struct half half[2]) {
    for (int i = 0; i < 2; i++) {
        CHECK(!ibv_destroy_qp(half[i].qp));
        CHECK(!ibv_destroy_cq(half[i].cq));
    }
}

/* The status of the next completion of a queue. */
static enum ibv_wc_status status_of(struct ibv_cq *cq) { return next(cq).status; }

/* Which operation, and which end's memory it is that goes. */
enum operation { SEND_LOCAL, SEND_RECEIVE, WRITE_LOCAL, WRITE_REMOTE, READ_LOCAL, READ_REMOTE, ATOMIC_LOCAL, ATOMIC_REMOTE, OPERATIONS };
static const struct {
    const char *name;
    enum ibv_wr_opcode opcode;
    int remote;
    int stores;
    enum ibv_wc_status failure;
} operations[OPERATIONS] = {
    [SEND_LOCAL] = {"SEND from it", IBV_WR_SEND, 0, 0, IBV_WC_LOC_PROT_ERR},
    [SEND_RECEIVE] = {"receive into it", IBV_WR_SEND, 1, 1, IBV_WC_REM_OP_ERR},
    [WRITE_LOCAL] = {"WRITE from it", IBV_WR_RDMA_WRITE, 0, 0, IBV_WC_LOC_PROT_ERR},
    [WRITE_REMOTE] = {"WRITE to it", IBV_WR_RDMA_WRITE, 1, 1, IBV_WC_REM_ACCESS_ERR},
    [READ_LOCAL] = {"READ into it", IBV_WR_RDMA_READ, 0, 1, IBV_WC_LOC_PROT_ERR},
    [READ_REMOTE] = {"READ from it", IBV_WR_RDMA_READ, 1, 0, IBV_WC_REM_ACCESS_ERR},
    [ATOMIC_LOCAL] = {"ATOMIC, result", IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 1, IBV_WC_LOC_PROT_ERR},
    [ATOMIC_REMOTE] = {"ATOMIC, target", IBV_WR_ATOMIC_FETCH_AND_ADD, 1, 1, IBV_WC_REM_ACCESS_ERR},
};

/* What becomes of the memory. */
enum loss { NOTHING, UNMAPPED, NO_ACCESS, READ_ONLY, TRUNCATED, MOVED, REPLACED, DROPPED, FORKED, LOSSES };
static const char *losses[LOSSES] = {"nothing",   "munmap", "mprotect none", "mprotect read", "ftruncate",
                                     "mremap away", "mmap over", "MADV_DONTNEED", "fork"};

static char *map(int file) {
    int how = file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    char *memory = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, how, file, 0);
    CHECK(memory != MAP_FAILED);
    memset(memory, 7, LENGTH);
    return memory;
}

/* Takes the memory away; returns a child that lives meanwhile, if any. */
static pid_t lose(enum loss loss, char *memory, int file) {
    switch (loss) {
    case UNMAPPED:
        CHECK(!munmap(memory, LENGTH));
        break;
    case NO_ACCESS:
        CHECK(!mprotect(memory, LENGTH, PROT_NONE));
        break;
    case READ_ONLY:
        CHECK(!mprotect(memory, LENGTH, PROT_READ));
        break;
    case TRUNCATED:
        CHECK(!ftruncate(file, 0));
        break;
    case MOVED: {
        char *away = mmap(NULL, LENGTH, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(mremap(memory, LENGTH, LENGTH, MREMAP_MAYMOVE | MREMAP_FIXED, away) == away);
        break;
    }
    case REPLACED:
        CHECK(mmap(memory, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == memory);
        break;
    case DROPPED:
        CHECK(!madvise(memory, LENGTH, MADV_DONTNEED));
        break;
    case FORKED: {
        pid_t child = fork();
        CHECK(child >= 0);
        if (!child)
            for (;;) pause();
        return child;
    }
    default:
        break;
    }
    return 0;
}

static void post(struct half *half, enum ibv_wr_opcode opcode, void *local, struct ibv_mr *mr, uint32_t length, void *remote,
                 uint32_t rkey) {
    struct ibv_sge sge = {(uintptr_t)local, length, mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = opcode}, *bad;
    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        wr.wr.atomic.remote_addr = (uintptr_t)remote;
        wr.wr.atomic.rkey = rkey;
        wr.wr.atomic.compare_add = 1;
    } else {
        wr.wr.rdma.remote_addr = (uintptr_t)remote;
        wr.wr.rdma.rkey = rkey;
    }
    CHECK(!ibv_post_send(half->qp, &wr, &bad));
}

/* One field of the matrix. */
static void try_one(enum loss loss, enum operation operation) {
    struct half half[2];
    make_pair(half);
    int file = loss == TRUNCATED ? memfd_create("memory", MFD_CLOEXEC) : -1;
    CHECK(file < 0 || !ftruncate(file, LENGTH));
    char *lost = map(file), *kept = map(-1);
    int remote = operations[operation].remote;
    struct ibv_mr *lost_mr = ibv_reg_mr(pds[remote], lost, LENGTH, ALL);
    struct ibv_mr *kept_mr = ibv_reg_mr(pds[1 - remote], kept, LENGTH, ALL);
    CHECK(lost_mr && kept_mr);
    enum ibv_wr_opcode opcode = operations[operation].opcode;
    uint32_t length = opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ? 8 : LENGTH;
    if (opcode == IBV_WR_SEND) {
        char *target = remote ? lost : kept;
        struct ibv_sge sge = {(uintptr_t)target, LENGTH, (remote ? lost_mr : kept_mr)->lkey};
        struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
        CHECK(!ibv_post_recv(half[1].qp, &wr, &bad));
    }
    pid_t child = lose(loss, lost, file);
    if (remote)
        post(&half[0], opcode, kept, kept_mr, length, lost, lost_mr->rkey);
    else
        post(&half[0], opcode, lost, lost_mr, length, kept, kept_mr->rkey);
    int gone = loss == UNMAPPED || loss == NO_ACCESS || loss == TRUNCATED || loss == MOVED ||
               (loss == READ_ONLY && operations[operation].stores);
    enum ibv_wc_status expected = gone ? operations[operation].failure : IBV_WC_SUCCESS;
    enum ibv_wc_status status = status_of(half[0].cq);
    if (verbose)
        printf("%-14s %-16s %s\n", losses[loss], operations[operation].name, ibv_wc_status_str(status));
    if (status != expected) {
        fprintf(stderr, "%s, %s: %s instead of %s\n", losses[loss], operations[operation].name, ibv_wc_status_str(status),
                ibv_wc_status_str(expected));
        _exit(1);
    }
    if (operation == SEND_RECEIVE)
        CHECK(status_of(half[1].cq) == (gone ? IBV_WC_LOC_PROT_ERR : IBV_WC_SUCCESS));
    /* What was written is where the program sees it, also beside a child. */
    if (!gone && operation == WRITE_REMOTE)
        CHECK(!memcmp(lost, kept, LENGTH));
    if (!gone && operation == ATOMIC_REMOTE)
        CHECK(*(uint64_t *)lost == *(uint64_t *)kept + 1);
    if (child) {
        CHECK(!kill(child, SIGKILL));
        CHECK(waitpid(child, NULL, 0) == child);
    }
    CHECK(!ibv_dereg_mr(lost_mr));
    CHECK(!ibv_dereg_mr(kept_mr));
    destroy_pair(half);
    if (loss != UNMAPPED && loss != MOVED)
        CHECK(!munmap(lost, LENGTH));
    CHECK(!munmap(kept, LENGTH));
    if (file >= 0)
        close(file);
}

/* Memory that cannot be used as is asked for is not registered. */
static void refuse_registration(void) {
    char *memory = mmap(NULL, LENGTH, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    const int writing[] = {IBV_ACCESS_LOCAL_WRITE, ALL, IBV_ACCESS_MW_BIND | IBV_ACCESS_LOCAL_WRITE};
    for (unsigned i = 0; i < sizeof writing / sizeof *writing; i++) {
        errno = 0;
        CHECK(!ibv_reg_mr(pds[0], memory, LENGTH, writing[i]) && errno == EFAULT);
        CHECK(!ibv_reg_mr_iova(pds[0], memory, LENGTH, 0, writing[i]) && errno == EFAULT);
    }
    struct ibv_mr *mr = ibv_reg_mr(pds[0], memory, LENGTH, IBV_ACCESS_REMOTE_READ);
    CHECK(mr);
    errno = 0;
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ALL) && errno == EFAULT);
    char *writable = map(-1);
    /* Other memory, the same rights: reading is enough, and writing is not given. */
    CHECK(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, memory, PAGE, 0));
    CHECK(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, writable, LENGTH, 0));
    CHECK(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ALL));
    errno = 0;
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, memory, LENGTH, 0) && errno == EFAULT);
    CHECK(!ibv_dereg_mr(mr));
    CHECK(!munmap(memory, LENGTH));
    errno = 0;
    CHECK(!ibv_reg_mr(pds[0], memory, LENGTH, IBV_ACCESS_REMOTE_READ) && errno == EFAULT);
    munmap(writable, LENGTH);
}

static sigjmp_buf back;
static volatile sig_atomic_t faults;
static void *volatile fault_address;

static void own_handler(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    faults++;
    fault_address = info->si_addr;
    siglongjmp(back, 1);
}

static void own_simple_handler(int signal) {
    (void)signal;
    faults++;
    siglongjmp(back, 1);
}

/* A fault of the program's own goes to its handler. */
static void fault_on_purpose(void) {
    char *nowhere = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int before = faults;
    if (!sigsetjmp(back, 1)) {
        *(volatile char *)nowhere = 1;
        CHECK(!"reached");
    }
    CHECK(faults == before + 1);
    munmap(nowhere, PAGE);
}

static void install(int signal) {
    struct sigaction action = {.sa_sigaction = own_handler, .sa_flags = SA_SIGINFO};
    CHECK(!sigaction(signal, &action, NULL));
}

/* The operations that fault in this thread, in the other end's progress thread, and by either
 * signal. */
static void try_faults(void) {
    int before = faults;
    try_one(UNMAPPED, WRITE_REMOTE);
    try_one(UNMAPPED, SEND_LOCAL);
    try_one(TRUNCATED, READ_REMOTE);
    try_one(TRUNCATED, WRITE_LOCAL);
    CHECK(faults == before);
}

static void *blocked_thread(void *unused) {
    sigset_t all;
    sigfillset(&all);
    CHECK(!pthread_sigmask(SIG_BLOCK, &all, NULL));
    try_faults();
    /* Blocked once more after this thread was looked at. */
    CHECK(!pthread_sigmask(SIG_BLOCK, &all, NULL));
    try_faults();
    CHECK(!sigprocmask(SIG_SETMASK, &all, NULL));
    try_faults();
    return unused;
}

__attribute__((unused)) static void handlers(void) {
    /* One that was there before the library's (see main) has seen nothing of the matrix, and
     * sees the program's faults. */
    struct sigaction found;
    CHECK(!sigaction(SIGSEGV, NULL, &found) && found.sa_sigaction == own_handler && found.sa_flags & SA_SIGINFO);
    CHECK(faults == 0);
    fault_on_purpose();
    CHECK(fault_address);
    try_faults();
    /* One that is installed later. */
    struct sigaction simple = {.sa_handler = own_simple_handler, .sa_flags = SA_NODEFER}, old;
    CHECK(!sigaction(SIGSEGV, &simple, &old) && old.sa_sigaction == own_handler);
    CHECK(!sigaction(SIGSEGV, NULL, &found) && found.sa_handler == own_simple_handler && found.sa_flags & SA_NODEFER);
    try_faults();
    fault_on_purpose();
    CHECK(signal(SIGSEGV, SIG_DFL) == own_simple_handler);
    CHECK(signal(SIGBUS, SIG_IGN) == SIG_DFL);
    try_faults();
    CHECK(signal(SIGSEGV, own_simple_handler) == SIG_DFL);
    try_faults();
    fault_on_purpose();
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, blocked_thread, NULL));
    CHECK(!pthread_join(thread, NULL));
    /* Without a handler, a fault of its own ends a program as ever; so does a signal that is
     * sent. */
    for (int sent = 0; sent < 2; sent++) {
        signal(SIGSEGV, SIG_DFL);
        pid_t child = fork();
        CHECK(child >= 0);
        if (!child) {
            if (sent)
                raise(SIGSEGV);
            else
                *(volatile char *)16 = 1;
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    }
    /* A handler for one fault. */
    struct sigaction once = {.sa_handler = own_simple_handler, .sa_flags = SA_RESETHAND};
    CHECK(!sigaction(SIGSEGV, &once, NULL));
    try_faults();
    fault_on_purpose();
    CHECK(!sigaction(SIGSEGV, NULL, &found) && found.sa_handler == SIG_DFL);
    try_faults();
}

int main(int count, char **arguments) {
    verbose = count > 1 && !strcmp(arguments[1], "verbose");
    install(SIGSEGV);
    for (int i = 0; i < 2; i++) {
        CHECK((contexts[i] = open_device(i)));
        CHECK((pds[i] = ibv_alloc_pd(contexts[i])));
    }
    refuse_registration();
    for (int loss = 0; loss < LOSSES; loss++)
        for (int operation = 0; operation < OPERATIONS; operation++) try_one(loss, operation);
#ifndef __SANITIZE_ADDRESS__ /* whose own sigaction calls the C library's, past this library's */
    handlers();
#endif
    for (int i = 0; i < 2; i++) {
        CHECK(!ibv_dealloc_pd(pds[i]));
        CHECK(!ibv_close_device(contexts[i]));
    }
    puts("fine");
    return 0;
}
