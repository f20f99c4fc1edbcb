/* mpi.c: the link of ranks over MPI, the one file that knows MPI.
 *
 * While a rank waits, it sends both neighbours a sign of life twice a second, and counts for how
 * long the rank that it waits for has been silent. So in a row of ranks that wait for each other
 * only the one beside the culprit runs out of patience. A rank that is no neighbour sends no signs:
 * there the count begins with the wait, as the message is on its way by then. */
#include "nn/group/group.h"

#include <stdlib.h>

#ifndef TL_MPI
#define TL_MPI 0
#endif

/* A group of one sends nothing. */
static void no_end(void *ctx, bool failed) { (void)ctx, (void)failed; }
static const tl_link of_one = {.size = 1, .end = no_end};

/* Fails if mpirun has started this process as one of several. */
static tl_status started_alone(const char *but, tl_err *e)
{
    static const char *const started[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS",
                                          "SLURM_STEP_NUM_TASKS"};
    for (size_t i = 0; i < sizeof started / sizeof *started; i++) {
        const char *n = getenv(started[i]);
        if (n != NULL && atoi(n) > 1)
            return tl_fail(e, TL_EUSAGE, "started as one of %.20s processes (%s), but %s", n,
                           started[i], but);
    }
    return TL_OK;
}

static tl_status check_call(tl_link *out, double timeout, tl_err *e)
{
    TL_TRY(tl_need(e, "tl_link_mpi", "out", out != NULL, 1));
    *out = (tl_link){0};
    return timeout >= 0 ? TL_OK
                        : tl_fail(e, TL_EDOMAIN,
                                  "tl_link_mpi: a timeout of %g seconds; 0 is the "
                                  "default",
                                  timeout);
}

#if !TL_MPI
tl_status tl_link_mpi(tl_link *out, double timeout, tl_err *e)
{
    TL_TRY(check_call(out, timeout, e));
    TL_TRY(started_alone("made without MPI: make TL_MPI=1", e));
    *out = of_one;
    return TL_OK;
}
#else

#include <mpi.h>
#include <string.h>
#include <time.h>

#include "tensor/threads.h"

/* Whether a launcher has started this process: launchers of MPI tell their processes so in the
 * environment, by PMI, PMIx or a name of their own. A process alone does not begin MPI, which takes
 * time, files in shared memory and, with Open MPI, another process. */
static bool launched(void)
{
    extern char **environ;
    static const char *const says[] = {"PMI", "OMPI_COMM_WORLD_", "MPI_LOCAL", "SLURM_STEP"};
    for (char **e = environ; e != NULL && *e != NULL; e++)
        for (size_t i = 0; i < sizeof says / sizeof *says; i++)
            if (strncmp(*e, says[i], strlen(says[i])) == 0)
                return true;
    return false;
}

enum { DATA = 1, ALIVE, PIECE = 1 << 30 };

typedef struct {
    const void *bytes;
    int to;
    MPI_Request r;
} sending;

typedef struct {
    MPI_Comm comm; /* a duplicate of the world: its messages and errors are ours alone */
    int next, before;
    double timeout;
    sending *sent;
    int n, room;
    double signalled;    /* when the last signs of life were sent */
    double heard[2];     /* when the last signs of `next` and `before` came */
    MPI_Request sign[2]; /* sends of signs to them */
} ring;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The number of links. If a link began MPI, it ends with the last. */
static int links;
static bool begun;

/* Sends signs of life and takes those that have come. */
static void signs(ring *m)
{
    static char sign;
    const int rank[2] = {m->next, m->before};
    const double t = now();
    for (int i = 0; i < 2; i++) {
        int there, gone = 1;
        char got;
        while (MPI_Iprobe(rank[i], ALIVE, m->comm, &there, MPI_STATUS_IGNORE), there) {
            MPI_Recv(&got, 1, MPI_CHAR, rank[i], ALIVE, m->comm, MPI_STATUS_IGNORE);
            m->heard[i] = t;
        }
        if (t - m->signalled < 0.5)
            continue;
        MPI_Test(&m->sign[i], &gone, MPI_STATUS_IGNORE);
        if (gone)
            MPI_Isend(&sign, 1, MPI_CHAR, rank[i], ALIVE, m->comm, &m->sign[i]);
    }
    m->signalled = t - m->signalled < 0.5 ? m->signalled : t;
}

/* Waits for `rank` until a request is done: n bytes from it or, if n is 0, anything else. */
static tl_status wait(ring *m, MPI_Request *r, int rank, const char *what, int n, tl_err *e)
{
    MPI_Status s;
    const double began = now();
    int done = 0;
    for (int turn = 0;; turn++) {
        int got = 0, class = MPI_SUCCESS;
        const int error = MPI_Test(r, &done, &s);
        MPI_Error_class(error, &class);
        if (error != MPI_SUCCESS && class != MPI_ERR_TRUNCATE)
            return tl_fail(e, TL_EIO, "rank %d is lost", rank);
        if (done && n > 0)
            MPI_Get_count(&s, MPI_BYTE, &got);
        if (class == MPI_ERR_TRUNCATE || (done && got != n))
            return tl_fail(e, TL_EIO, "rank %d sent %s than %d bytes", rank,
                           class == MPI_ERR_TRUNCATE ? "more" : "fewer", n);
        if (done)
            break;
        if (turn < 200)
            continue;
        signs(m);
        const double heard = rank == m->next     ? m->heard[0]
                             : rank == m->before ? m->heard[1]
                                                 : began,
                     last = heard > began ? heard : began;
        if (now() - last > m->timeout)
            return tl_fail(e, TL_EIO, "rank %d has %s nothing for %g s: it hangs, or is too slow",
                           rank, what, m->timeout);
        nanosleep(&(struct timespec){0, 20000}, NULL); /* there may be fewer cores than ranks */
    }
    return TL_OK;
}

static tl_status send(void *ctx, int to, const void *bytes, size_t n, tl_err *e)
{
    ring *m = ctx;
    for (size_t at = 0; at < n; at += PIECE) {
        if (m->n == m->room) {
            const int room = 2 * m->room + 16;
            sending *grown = realloc(m->sent, (size_t)room * sizeof *grown);
            if (grown == NULL)
                return tl_fail(e, TL_ENOMEM, "no memory for %d messages", room);
            m->sent = grown;
            m->room = room;
        }
        const size_t piece = n - at < PIECE ? n - at : PIECE;
        sending *s = &m->sent[m->n];
        s->bytes = bytes;
        s->to = to;
        if (MPI_Isend((const char *)bytes + at, (int)piece, MPI_BYTE, to, DATA, m->comm, &s->r) !=
            MPI_SUCCESS)
            return tl_fail(e, TL_EIO, "rank %d is lost", to);
        m->n++;
    }
    return TL_OK;
}

static tl_status receive(void *ctx, int from, void *bytes, size_t n, tl_err *e)
{
    ring *m = ctx;
    for (size_t at = 0; at < n; at += PIECE) {
        const size_t piece = n - at < PIECE ? n - at : PIECE;
        MPI_Request r;
        if (MPI_Irecv((char *)bytes + at, (int)piece, MPI_BYTE, from, DATA, m->comm, &r) !=
            MPI_SUCCESS)
            return tl_fail(e, TL_EIO, "rank %d is lost", from);
        if (wait(m, &r, from, "sent", (int)piece, e) != TL_OK) {
            if (r != MPI_REQUEST_NULL) { /* bytes that come late must not be written */
                MPI_Cancel(&r);
                MPI_Wait(&r, MPI_STATUS_IGNORE);
            }
            return e->status;
        }
    }
    return TL_OK;
}

static tl_status settle(void *ctx, const void *bytes, tl_err *e)
{
    ring *m = ctx;
    int kept = 0;
    for (int i = 0; i < m->n; i++) {
        int done = 0;
        MPI_Test(&m->sent[i].r, &done, MPI_STATUS_IGNORE);
        if (!done && (bytes == NULL || m->sent[i].bytes == bytes))
            TL_TRY(wait(m, &m->sent[i].r, m->sent[i].to, "taken", 0, e));
        else if (!done)
            m->sent[kept++] = m->sent[i];
    }
    m->n = kept;
    return TL_OK;
}

static bool comes(void *ctx)
{
    ring *m = ctx;
    int there = 0;
    signs(m);
    return MPI_Iprobe(m->before, DATA, m->comm, &there, MPI_STATUS_IGNORE) == MPI_SUCCESS && there;
}

static void end(void *ctx, bool failed)
{
    ring *m = ctx;
    tl_err e = {.status = TL_OK};
    MPI_Request all;
    /* After a failure MPI is left as it is: ending it would wait for all ranks. */
    if (!failed && MPI_Ibarrier(m->comm, &all) == MPI_SUCCESS &&
        wait(m, &all, m->before, "ended", 0, &e) == TL_OK) {
        for (int i = 0; i < 2; i++)
            MPI_Wait(&m->sign[i], MPI_STATUS_IGNORE);
        MPI_Comm_free(&m->comm);
        if (--links == 0 && begun)
            MPI_Finalize();
    }
    free(m->sent);
    free(m);
}

static tl_status begin(ring *m, bool begins, tl_link *out, tl_err *e)
{
    int rank, size, level;
    if (begins && MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level) != MPI_SUCCESS)
        return tl_fail(e, TL_EIO, "tl_link_mpi: MPI does not begin");
    begun |= begins;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    const tl_status s = size > 1
                            ? TL_OK
                            : started_alone("this MPI knows of one: it is not the one that mpirun "
                                            "is of",
                                            e);
    if (s != TL_OK && begins)
        MPI_Finalize();
    TL_TRY(s);
    if (MPI_Comm_dup(MPI_COMM_WORLD, &m->comm) != MPI_SUCCESS)
        return tl_fail(e, TL_EIO, "tl_link_mpi: MPI_COMM_WORLD cannot be duplicated");
    MPI_Comm_set_errhandler(m->comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(m->comm, &rank);
    m->next = (rank + 1) % size;
    m->before = (rank + size - 1) % size;
    m->sign[0] = m->sign[1] = MPI_REQUEST_NULL;
    *out = (tl_link){m, rank, size, send, receive, settle, comes, end};
    links++;
    return TL_OK;
}

/* The number of seconds in text; NULL: 600. False: no number, or none above 0. */
static bool seconds_of(const char *text, double *out)
{
    char *end;
    tl_textenv saved = tl_textenv_enter();
    *out = strtod(text != NULL ? text : "600", &end);
    tl_textenv_leave(saved);
    return *end == '\0' && *out > 0;
}

tl_status tl_link_mpi(tl_link *out, double timeout, tl_err *e)
{
    const char *text = getenv("TL_MPI_TIMEOUT");
    int there = 0, over = 0;
    TL_TRY(check_call(out, timeout, e));
    MPI_Finalized(&over);
    if (over)
        return tl_fail(e, TL_EUSAGE,
                       "tl_link_mpi: MPI has ended in this process, with the last link or by the "
                       "program; it cannot begin again");
    MPI_Initialized(&there);
    if (!there && !launched()) {
        *out = of_one;
        return TL_OK;
    }
    if (timeout == 0 && !seconds_of(text, &timeout))
        return tl_fail(e, TL_EUSAGE, "TL_MPI_TIMEOUT=%.40s: a number of seconds above 0 is needed",
                       text);
    ring *m = calloc(1, sizeof *m);
    if (m == NULL)
        return tl_fail(e, TL_ENOMEM, "tl_link_mpi: no memory");
    m->timeout = timeout;
    const tl_status s = begin(m, !there, out, e);
    if (s != TL_OK)
        free(m);
    return s;
}
#endif
