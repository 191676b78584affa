/* The part of a rank that Python is too slow for: completion flags, walking a lane of host calls, carrying transfers.
 *
 * Flags are 64-bit words in memory shared by processes, one cache line each, holding the epoch in which an op
 * was last completed. A writer stores with release, a reader loads with acquire: what was written before the flag
 * is there for whoever has seen it, on every architecture. Addresses come from Python as integers; their owner
 * keeps the memory mapped while a call runs. walker.py and courier.py lay out `struct lane` and `struct courier`.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* LAYOUT: of the structures and methods that Python uses; native.py says the same. One more with every change. */
enum { LINE_WORDS = 8, ROUNDS = 64, LAYOUT = 3 };
/* Words of a lane's line of counters. */
enum { ISSUED, COMPLETE, WAITS, BELL };
/* Words of an agent's line: its bell, whether ops are long enough for blocking to pay, and the bell of meetings, whose
 * address comes from arena.py. */
enum { COARSE = 1 };

struct lane {
    int64_t n, position;
    uint64_t epoch;
    uint64_t *flags, *aborted;
    const int32_t *ops;
    const int64_t *dep_ptr;
    const int32_t *deps;
    double *start_s, *finish_s;
    uint64_t *counters; /* issued, complete, whether it needs no core */
    int64_t spin_ns, idle_ns, sleep_ns;
    const uint8_t *gives; /* whether the agent sends what the op makes, and may need this core for it */
    uint64_t *bell;       /* of the node's agent, or NULL where it has a core of its own */
    const uint8_t *far;   /* by dependency, whether it is received from another node */
};

static inline uint64_t load(const uint64_t *word)
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static inline void store(uint64_t *word, uint64_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void *address(PyObject *number)
{
    return (void *)(uintptr_t)PyLong_AsUnsignedLongLong(number);
}

/* Advance *dep to the first dependency that is not complete; return whether there is none. */
static inline int complete(const uint64_t *flags, uint64_t epoch, const int32_t *deps, int64_t *dep, int64_t end)
{
    while (*dep < end && load(flags + (int64_t)deps[*dep] * LINE_WORDS) >= epoch)
        ++*dep;
    return *dep == end;
}

/* Give the core away for a moment: spin where that is allowed, then yield, then sleep. */
static void pause_once(int64_t idle_ns, int64_t spin_ns, int64_t yield_ns, int64_t sleep_ns)
{
    if (idle_ns < spin_ns)
        for (int i = 0; i < 8; i++)
            relax();
    else if (idle_ns < yield_ns)
        sched_yield();
    else {
        struct timespec t = {0, sleep_ns};
        nanosleep(&t, NULL);
    }
}

/* A futex has 32 bits: the half of the word that holds a 1. */
static inline uint32_t *half(uint64_t *bell)
{
    return (uint32_t *)bell + (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__);
}

/* Wake the node's agent if it naps: there is something to send, a core to use, or a rank at a meeting. */
static inline void ring(uint64_t *bell)
{
    if (bell != NULL && load(bell)) {
        store(bell, 0);
        syscall(SYS_futex, half(bell), FUTEX_WAKE, 1, NULL, NULL, 0);
    }
}

/* Sleep until the bell, set to 1 by the caller, is rung, time_ns at most; not at all if it was rung since. */
static void nap(uint64_t *bell, int64_t time_ns)
{
    struct timespec t = {time_ns / 1000000000, time_ns % 1000000000};
    syscall(SYS_futex, half(bell), FUTEX_WAIT, 1, &t, NULL, 0);
    store(bell, 0);
}

/* Wait until the op at the lane's position may start. 1: it may, 0: the epoch is aborted, -1: a signal raised. */
static int wait_for_turn(struct lane *lane)
{
    int64_t dep = lane->dep_ptr[lane->position], end = lane->dep_ptr[lane->position + 1];
    if (load(lane->aborted) >= lane->epoch)
        return 0;
    if (complete(lane->flags, lane->epoch, lane->deps, &dep, end))
        return 1;
    int64_t since_ns = now_ns();
    store(lane->counters + WAITS, 1);
    for (;;) {
        int ready = 0, aborted = 0;
        PyThreadState *thread = PyEval_SaveThread();
        for (int round = 0; round < ROUNDS && !ready && !aborted; round++) {
            int blocks = lane->bell != NULL && lane->far[dep] && load(lane->bell + COARSE);
            if (blocks)
                store(lane->counters + BELL, 1);
            ring(lane->bell);
            if (!blocks)
                pause_once(now_ns() - since_ns, lane->spin_ns, lane->idle_ns, lane->sleep_ns);
            ready = complete(lane->flags, lane->epoch, lane->deps, &dep, end);
            aborted = load(lane->aborted) >= lane->epoch;
            if (blocks && !ready && !aborted)
                nap(lane->counters + BELL, lane->sleep_ns);
        }
        PyEval_RestoreThread(thread);
        int raised = !aborted && !ready && PyErr_CheckSignals();
        if (aborted || ready || raised) {
            store(lane->counters + WAITS, 0);
            return aborted ? 0 : raised ? -1 : 1;
        }
    }
}

static PyObject *walk(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    if (n_args != 2)
        return PyErr_Format(PyExc_TypeError, "walk(lane, calls)");
    struct lane *lane = address(args[0]);
    if (PyErr_Occurred())
        return NULL;
    store(lane->counters + WAITS, 0);
    for (; lane->position < lane->n; lane->position++) {
        int turn = wait_for_turn(lane);
        if (turn < 0 || PyErr_CheckSignals())
            return NULL;
        if (turn == 0)
            Py_RETURN_FALSE;
        int32_t op = lane->ops[lane->position];
        PyObject *call = PyTuple_GetItem(args[1], (Py_ssize_t)lane->position);
        if (call == NULL)
            return NULL;
        store(lane->counters + ISSUED, lane->counters[ISSUED] + 1);
        lane->start_s[op] = 1e-9 * (double)now_ns();
        PyObject *result = PyObject_CallNoArgs(call);
        if (result == NULL)
            return NULL;
        lane->finish_s[op] = 1e-9 * (double)now_ns();
        store(lane->flags + (int64_t)op * LINE_WORDS, lane->epoch);
        store(lane->counters + COMPLETE, lane->counters[COMPLETE] + 1);
        Py_DECREF(result);
        if (lane->gives[lane->position]) {
            ring(lane->bell);
            sched_yield();
        }
    }
    /* With nothing left to do this device needs no core. */
    store(lane->counters + WAITS, 1);
    ring(lane->bell);
    Py_RETURN_TRUE;
}

static PyObject *poll(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    enum { FIXED = 6, MOST = 8 };
    int64_t begin[MOST], end[MOST];
    Py_ssize_t lanes = (n_args - FIXED) / 2;
    if (n_args < FIXED || (n_args - FIXED) % 2 || lanes > MOST)
        return PyErr_Format(PyExc_TypeError, "poll(flags, aborted, epoch, deps, yield_ns, sleep_ns, begin, end, ...)");
    uint64_t *flags = address(args[0]), *aborted = address(args[1]);
    uint64_t epoch = PyLong_AsUnsignedLongLong(args[2]);
    const int32_t *deps = address(args[3]);
    int64_t yield_ns = PyLong_AsLongLong(args[4]), sleep_ns = PyLong_AsLongLong(args[5]);
    for (Py_ssize_t i = 0; i < lanes; i++) {
        begin[i] = PyLong_AsLongLong(args[FIXED + 2 * i]);
        end[i] = PyLong_AsLongLong(args[FIXED + 2 * i + 1]);
    }
    if (PyErr_Occurred())
        return NULL;
    int64_t since_ns = 0;
    PyThreadState *thread = NULL;
    long ready = 0;
    for (int round = 0;; round++) {
        for (Py_ssize_t i = 0; i < lanes; i++)
            if (begin[i] >= 0 && complete(flags, epoch, deps, &begin[i], end[i]))
                ready |= 1L << i;
        if (load(aborted) >= epoch)
            ready = -1;
        if (ready || yield_ns <= 0)
            break;
        int64_t time_ns = now_ns();
        if (thread == NULL) {
            thread = PyEval_SaveThread();
            since_ns = time_ns;
        }
        if (time_ns - since_ns >= yield_ns) {
            if (sleep_ns > 0)
                pause_once(yield_ns, 0, yield_ns, sleep_ns);
            break;
        }
        sched_yield();
    }
    if (thread != NULL)
        PyEval_RestoreThread(thread);
    return PyLong_FromLong(ready);
}

/* A send or receive lane of a courier. Handles are those of persistent requests, one an op, in lane order. */
struct route {
    int64_t n, issued, done;
    const int32_t *ops;
    const int64_t *dep_ptr;
    const int32_t *deps;
    const char *handles;
    uint64_t *counters;
};

struct courier {
    int64_t n_routes;
    uint64_t epoch;
    uint64_t *flags, *aborted;
    double *start_s, *finish_s;
    int (*start)(void *request);
    int (*testsome)(int count, void *requests, int *done, int *indices, void *statuses);
    int64_t handle_bytes, window;
    /* Posted and not complete: handles, (route, op) pairs, times of posting; room for window * n_routes. */
    int64_t n_active;
    char *active;
    int64_t *active_ops;
    double *posted_s;
    int *indices;
    void *statuses;
    int64_t spin_ns, idle_ns, sleep_ns;
    /* Where ranks share cores: the counters of the node's CPU devices, and what is known of their ops. */
    int64_t n_neighbours;
    uint64_t *const *neighbours;
    uint64_t *bell;
    int64_t nap_ns, coarse_ns;
    int64_t looked_ns, n_seen, coarse;
    struct route routes[];
};

enum { DONE, QUIET, ABORTED, ERROR };
enum { LOOK_NS = 1000000 };

/* Post the heads of a route that may start; return how many, or −1 where MPI refuses. */
static int64_t post(struct courier *c, int64_t which)
{
    struct route *r = &c->routes[which];
    int64_t before = r->issued;
    while (r->issued < r->n && r->issued - r->done < c->window) {
        int64_t dep = r->dep_ptr[r->issued];
        if (!complete(c->flags, c->epoch, r->deps, &dep, r->dep_ptr[r->issued + 1]))
            break;
        char *handle = c->active + c->n_active * c->handle_bytes;
        memcpy(handle, r->handles + r->issued * c->handle_bytes, c->handle_bytes);
        c->active_ops[2 * c->n_active] = which;
        c->active_ops[2 * c->n_active + 1] = r->ops[r->issued];
        c->posted_s[c->n_active] = 1e-9 * (double)now_ns();
        if (c->start(handle))
            return -1;
        c->n_active++;
        r->issued++;
        store(r->counters + ISSUED, r->counters[ISSUED] + 1);
    }
    return r->issued - before;
}

/* Publish what is complete; return how many, or −1 where MPI reports an error. */
static int collect(struct courier *c)
{
    int done = 0;
    if (c->n_active == 0)
        return 0;
    if (c->testsome((int)c->n_active, c->active, &done, c->indices, c->statuses))
        return -1;
    for (int i = 0; i < done; i++) {
        int at = c->indices[i];
        struct route *r = &c->routes[c->active_ops[2 * at]];
        int64_t op = c->active_ops[2 * at + 1];
        c->start_s[op] = c->posted_s[at];
        c->finish_s[op] = 1e-9 * (double)now_ns();
        store(c->flags + op * LINE_WORDS, c->epoch);
        r->done++;
        store(r->counters + COMPLETE, r->counters[COMPLETE] + 1);
        c->active_ops[2 * at] = -1;
    }
    int64_t kept = 0;
    for (int64_t i = 0; done > 0 && i < c->n_active; i++) {
        if (c->active_ops[2 * i] < 0)
            continue;
        if (kept < i) {
            memcpy(c->active + kept * c->handle_bytes, c->active + i * c->handle_bytes, c->handle_bytes);
            c->active_ops[2 * kept] = c->active_ops[2 * i];
            c->active_ops[2 * kept + 1] = c->active_ops[2 * i + 1];
            c->posted_s[kept] = c->posted_s[i];
        }
        kept++;
    }
    if (done > 0)
        c->n_active = kept;
    return done;
}

/* Whether no CPU device of the node waits or has ended: then this agent has the core of one of them. */
static int none_waits(const struct courier *c)
{
    for (int64_t i = 0; i < c->n_neighbours; i++)
        if (load(c->neighbours[i] + WAITS))
            return 0;
    return 1;
}

/* Look now and then whether the node's CPU devices take more than coarse_ns an op, waiting included. */
static void look_at_ops(struct courier *c, int64_t time_ns)
{
    int64_t seen = 0, since_ns = time_ns - c->looked_ns;
    if (since_ns < LOOK_NS)
        return;
    for (int64_t i = 0; i < c->n_neighbours; i++)
        seen += (int64_t)load(c->neighbours[i] + COMPLETE);
    if (c->looked_ns) /* not the first time in this epoch */
        c->coarse = (seen - c->n_seen) * c->coarse_ns < since_ns * c->n_neighbours;
    c->n_seen = seen;
    c->looked_ns = time_ns;
}

/* Where CPU devices need the core, let them have it, unless their ops are so short that waking up costs more.
 *
 * To yield is not enough: the scheduler owes a process that only yields the time that the others have computed, and
 * takes it from them in the middle of their calls. Those who sleep are owed nothing. So the agent sleeps unless a device
 * waits, and a device that waits for another node sleeps too. Return whether this agent slept.
 */
static int make_way(struct courier *c, int64_t moved, int64_t time_ns)
{
    if (c->n_neighbours == 0)
        return 0;
    look_at_ops(c, time_ns);
    store(c->bell + COARSE, c->coarse);
    if (!c->coarse)
        return 0;
    store(c->bell, 1);
    for (int64_t i = 0; moved && i < c->n_neighbours; i++)
        ring(c->neighbours[i] + BELL);
    /* Where something has come, a device that waited for it does not know yet. */
    if (moved || none_waits(c)) {
        nap(c->bell, c->nap_ns);
        return 1;
    }
    store(c->bell, 0);
    return 0;
}

/* Carry until all is done, or nothing has moved for a while: then the caller looks around and calls again. */
static int carry_on(struct courier *c)
{
    int64_t since_ns = now_ns();
    for (int round = 0;; round++) {
        int64_t moved = collect(c), left = 0;
        if (moved < 0)
            return ERROR;
        for (int64_t i = 0; i < c->n_routes; i++) {
            int64_t posted = post(c, i);
            if (posted < 0)
                return ERROR;
            moved += posted;
            left += c->routes[i].n - c->routes[i].done;
        }
        if (left == 0)
            return DONE;
        if (load(c->aborted) >= c->epoch)
            return ABORTED;
        int64_t time_ns = now_ns();
        int slept = make_way(c, moved, time_ns);
        if (moved) {
            since_ns = time_ns;
            round = 0;
            continue;
        }
        /* With requests posted MPI needs the core: yield, never sleep. */
        if (!slept)
            pause_once(time_ns - since_ns, c->spin_ns, c->n_active ? INT64_MAX : c->idle_ns, c->sleep_ns);
        if (round >= ROUNDS)
            return QUIET;
    }
}

static PyObject *carry(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    if (n_args != 1)
        return PyErr_Format(PyExc_TypeError, "carry(courier)");
    struct courier *courier = address(args[0]);
    if (PyErr_Occurred())
        return NULL;
    /* By default the kernel adds up to 50 us to every sleep. */
    prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
    PyThreadState *thread = PyEval_SaveThread();
    int result = carry_on(courier);
    PyEval_RestoreThread(thread);
    return PyLong_FromLong(result);
}

static PyObject *publish(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    if (n_args != 2)
        return PyErr_Format(PyExc_TypeError, "publish(address, epoch)");
    uint64_t *word = address(args[0]);
    uint64_t epoch = PyLong_AsUnsignedLongLong(args[1]);
    if (PyErr_Occurred())
        return NULL;
    store(word, epoch);
    Py_RETURN_NONE;
}

static PyObject *wake(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    if (n_args != 1)
        return PyErr_Format(PyExc_TypeError, "wake(bell)");
    uint64_t *bell = address(args[0]);
    if (PyErr_Occurred())
        return NULL;
    /* What the caller has published before must be seen by an agent that is about to nap, or its bell here. */
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    ring(bell);
    Py_RETURN_NONE;
}

static PyObject *rest(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    if (n_args != 5)
        return PyErr_Format(PyExc_TypeError, "rest(bell, first, n, epoch, time_ns)");
    uint64_t *bell = address(args[0]);
    const uint64_t *first = address(args[1]);
    int64_t n = PyLong_AsLongLong(args[2]);
    uint64_t epoch = PyLong_AsUnsignedLongLong(args[3]);
    int64_t time_ns = PyLong_AsLongLong(args[4]);
    if (PyErr_Occurred())
        return NULL;
    store(bell, 1);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    int missing = 0;
    for (int64_t i = 0; i < n && !missing; i++)
        missing = load(first + i * LINE_WORDS) < epoch;
    PyThreadState *thread = PyEval_SaveThread();
    if (missing)
        nap(bell, time_ns);
    else
        store(bell, 0);
    PyEval_RestoreThread(thread);
    return PyBool_FromLong(!missing);
}

static PyObject *seen(PyObject *self, PyObject *const *args, Py_ssize_t n_args)
{
    if (n_args != 2)
        return PyErr_Format(PyExc_TypeError, "seen(address, epoch)");
    const uint64_t *word = address(args[0]);
    uint64_t epoch = PyLong_AsUnsignedLongLong(args[1]);
    if (PyErr_Occurred())
        return NULL;
    return PyBool_FromLong(load(word) >= epoch);
}

#define METHOD(name, text) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, text}

static PyMethodDef methods[] = {
    METHOD(publish, "publish(address, epoch): store-release."),
    METHOD(wake, "wake(bell): end the nap of the agent whose bell it is."),
    METHOD(rest, "rest(bell, first, n, epoch, time_ns): nap unless n lines from first are complete; whether they were."),
    METHOD(seen, "seen(address, epoch): load-acquire, and whether the word is at least epoch."),
    METHOD(walk, "walk(lane, calls): run the calls in turn; True at the end, False where the epoch is aborted."),
    METHOD(carry, "carry(courier): post and test transfers; 0 done, 1 nothing moves, 2 aborted, 3 MPI error."),
    METHOD(poll, "poll(flags, aborted, epoch, deps, yield_ns, sleep_ns, begin, end, ...): bits of ranges complete."),
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_native", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void)
{
    PyObject *made = PyModule_Create(&module);
    if (made != NULL && PyModule_AddIntConstant(made, "LAYOUT", LAYOUT))
        return NULL;
    return made;
}
