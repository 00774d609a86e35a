/* Calls kernels of the library from Python: reads the arguments, finds the kernel for their types, and runs it on one
 * thread or on several, without the interpreter's lock.
 *
 * A kernel's machine code takes 8-byte words: a number is one word; an array is two zeros, how many numbers it has, the
 * bytes of one, their address, its shape and its strides. Types are written down as in `library.py`, for instance
 * "i8:1C (f4:2C) f8 b1": what does not match a known text to the letter is left to numba (NotImplemented).
 *
 * Threads that share a kernel wait here between calls: to begin and to end, a thread of Python would have to wait for
 * the interpreter's lock, some 50 microseconds, after all others that do. Each thread that is called calls two more.
 * Only functions of Python's stable interface are used, so one library serves all versions of Python.
 */
#define Py_LIMITED_API 0x030b0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <pythread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__linux__) && defined(__aarch64__)
#include <sys/auxv.h>
#endif

#define MOST_WORDS 2048
#define LONGEST_TEXT 1024
#define MOST_RESULTS 8
#define CACHE_LINE 64
#define N_THREADS 1 /* where a queue says how many threads share it */

typedef int32_t (*Code)(const int64_t *words, int64_t *results);

/* A kernel for arguments of certain types. */
typedef struct Variant {
    char *types;    /* the text */
    char *returns;  /* a letter for each result: d, l or b; empty for None */
    Code code;
    int is_shared;  /* whether the first argument is a queue */
    int n_scratch;
    int *scratch;   /* words at which arrays begin that each thread has its own of; negative − 1: filled with zeros */
    struct Variant *next;
} Variant;

typedef struct {
    Variant *first;
} Kernel;

/* The arguments of one call. */
typedef struct {
    int n_words, length;
    int64_t words[MOST_WORDS];
    char types[LONGEST_TEXT];
} Arguments;

/* ---- threads ---- */

typedef struct Team Team;

typedef struct {
    PyThread_type_lock called, done;
    Team *team;
    int number;
    char *memory; /* for scratch arrays, grown as needed */
    size_t size;
} Seat;

/* Threads that wait for a call. A team serves one call at a time; calls at the same time have a team each. */
struct Team {
    int n_seats, n_others;
    Seat **seats;
    const Variant *variant;
    const Arguments *arguments;
    volatile int32_t failed;
    Team *next;
};

static Team *idle = NULL; /* guarded by the interpreter's lock */

static void wake_two(Team *team, int first) {
    for (int number = first; number < first + 2 && number < team->n_others; number++)
        PyThread_release_lock(team->seats[number]->called);
}

static size_t bytes_of(const int64_t *array) {
    return ((size_t)(array[2] * array[3]) + CACHE_LINE - 1) & ~(size_t)(CACHE_LINE - 1);
}

/* Run the kernel with scratch memory of this seat. */
static int32_t join(Seat *seat, const Variant *variant, const Arguments *given) {
    int64_t words[MOST_WORDS], results[MOST_RESULTS];
    size_t needed = CACHE_LINE;
    memcpy(words, given->words, sizeof(int64_t) * given->n_words);
    for (int k = 0; k < variant->n_scratch; k++) {
        int at = variant->scratch[k];
        needed += bytes_of(words + (at < 0 ? -at - 1 : at));
    }
    if (needed > seat->size) {
        free(seat->memory);
        seat->memory = malloc(needed);
        seat->size = seat->memory == NULL ? 0 : needed;
        if (seat->memory == NULL) return -1;
    }
    char *to = (char *)(((uintptr_t)seat->memory + CACHE_LINE - 1) & ~(uintptr_t)(CACHE_LINE - 1));
    for (int k = 0; k < variant->n_scratch; k++) {
        int at = variant->scratch[k], zeros = at < 0;
        int64_t *array = words + (zeros ? -at - 1 : at);
        if (zeros) memset(to, 0, bytes_of(array));
        array[4] = (int64_t)(intptr_t)to;
        to += bytes_of(array);
    }
    return variant->code(words, results);
}

static void serve(void *argument) {
    Seat *seat = argument;
    for (;;) {
        PyThread_acquire_lock(seat->called, WAIT_LOCK);
        Team *team = seat->team;
        wake_two(team, 2 * seat->number + 2);
        int32_t status = join(seat, team->variant, team->arguments);
        if (status) team->failed = status;
        PyThread_release_lock(seat->done);
    }
}

static PyThread_type_lock closed_lock(void) {
    PyThread_type_lock lock = PyThread_allocate_lock();
    if (lock != NULL) PyThread_acquire_lock(lock, WAIT_LOCK);
    return lock;
}

/* A team of up to so many other threads: fewer where the system gives no more. The caller has the interpreter's lock. */
static Team *take_team(int n_others) {
    Team *team = idle;
    if (team != NULL)
        idle = team->next;
    else if ((team = calloc(1, sizeof(Team))) == NULL)
        return NULL;
    while (team->n_seats < n_others) {
        Seat *seat = calloc(1, sizeof(Seat));
        Seat **seats = realloc(team->seats, sizeof(Seat *) * (team->n_seats + 1));
        if (seats != NULL) team->seats = seats;
        if (seat == NULL || seats == NULL) break;
        seat->called = closed_lock();
        seat->done = closed_lock();
        seat->team = team;
        seat->number = team->n_seats;
        if (!seat->called || !seat->done) break;
        if (PyThread_start_new_thread(serve, seat) == (unsigned long)-1) break;
        team->seats[team->n_seats++] = seat;
    }
    team->n_others = n_others < team->n_seats ? n_others : team->n_seats;
    return team;
}

static int32_t run_shared(Team *team, const Variant *variant, const Arguments *arguments) {
    int64_t results[MOST_RESULTS];
    team->variant = variant;
    team->arguments = arguments;
    team->failed = 0;
    wake_two(team, 0);
    int32_t status = variant->code(arguments->words, results);
    for (int k = 0; k < team->n_others; k++) PyThread_acquire_lock(team->seats[k]->done, WAIT_LOCK);
    return status ? status : team->failed;
}

/* ---- arguments ---- */

static int write_text(Arguments *to, const char *text, size_t length) {
    if (to->length + length + 1 > LONGEST_TEXT) return 0;
    memcpy(to->types + to->length, text, length);
    to->length += (int)length;
    to->types[to->length] = 0;
    return 1;
}

static int write_word(Arguments *to, int64_t word) {
    if (to->n_words >= MOST_WORDS) return 0;
    to->words[to->n_words++] = word;
    return 1;
}

static int write_double(Arguments *to, double value) {
    int64_t word;
    memcpy(&word, &value, sizeof word);
    return write_word(to, word) && write_text(to, "f8", 2);
}

static char kind_of(const char *format) {
    if (format == NULL || format[0] == 0 || format[1] != 0) return 0;
    switch (format[0]) {
    case 'f': case 'd': return 'f';
    case '?': return 'b';
    case 'b': case 'h': case 'i': case 'l': case 'q': return 'i';
    case 'B': case 'H': case 'I': case 'L': case 'Q': return 'u';
    default: return 0;
    }
}

/* 'C' or 'F' if the numbers of an array lie one behind the other, by rows or by columns; 0 if not. */
static char layout_of(const Py_buffer *view) {
    int by_rows = 1, by_columns = 1;
    Py_ssize_t step = view->itemsize;
    if (view->len == 0) return 'C';
    for (int axis = view->ndim - 1; axis >= 0; axis--) {
        if (view->shape[axis] != 1 && view->strides[axis] != step) by_rows = 0;
        step *= view->shape[axis];
    }
    step = view->itemsize;
    for (int axis = 0; axis < view->ndim; axis++) {
        if (view->shape[axis] != 1 && view->strides[axis] != step) by_columns = 0;
        step *= view->shape[axis];
    }
    return by_rows ? 'C' : by_columns ? 'F' : 0;
}

static int write_view(Arguments *to, const Py_buffer *view) {
    char text[8], kind = kind_of(view->format);
    if (!kind || view->itemsize > 8 || view->ndim > 4) return 0;
    text[0] = kind;
    text[1] = (char)('0' + view->itemsize);
    if (view->ndim == 0) { /* one of NumPy's numbers */
        int64_t word = 0;
        memcpy(&word, view->buf, view->itemsize); /* the low bytes of a word: all machines here are little-endian */
        return write_word(to, word) && write_text(to, text, 2);
    }
    char layout = layout_of(view);
    if (!layout || (uintptr_t)view->buf % view->itemsize) return 0;
    text[2] = ':';
    text[3] = (char)('0' + view->ndim);
    text[4] = layout;
    int fits = write_text(to, text, 5) && write_word(to, 0) && write_word(to, 0);
    fits = fits && write_word(to, view->len / view->itemsize) && write_word(to, view->itemsize);
    fits = fits && write_word(to, (int64_t)(intptr_t)view->buf);
    for (int axis = 0; fits && axis < view->ndim; axis++) fits = write_word(to, view->shape[axis]);
    for (int axis = 0; fits && axis < view->ndim; axis++) fits = write_word(to, view->strides[axis]);
    return fits;
}

/* Write an argument; 0 for one that no kernel of the library takes. There is no Python error then. */
static int write_argument(Arguments *to, PyObject *given) {
    if (PyTuple_Check(given)) {
        Py_ssize_t n = PyTuple_Size(given);
        if (!write_text(to, "(", 1)) return 0;
        for (Py_ssize_t k = 0; k < n; k++) {
            if (k && !write_text(to, " ", 1)) return 0;
            if (!write_argument(to, PyTuple_GetItem(given, k))) return 0;
        }
        return write_text(to, ")", 1);
    }
    if (PyBool_Check(given)) return write_word(to, given == Py_True) && write_text(to, "b1", 2);
    if (PyFloat_Check(given)) return write_double(to, PyFloat_AsDouble(given));
    if (PyLong_Check(given)) {
        int overflow;
        long long value = PyLong_AsLongLongAndOverflow(given, &overflow);
        return !overflow && write_word(to, value) && write_text(to, "i8", 2);
    }
    Py_buffer view;
    if (PyObject_GetBuffer(given, &view, PyBUF_FORMAT | PyBUF_STRIDES) < 0) {
        PyErr_Clear();
        return 0;
    }
    int fits = write_view(to, &view);
    PyBuffer_Release(&view); /* the caller holds the array */
    return fits;
}

/* ---- calls ---- */

static PyObject *result_of(char letter, int64_t word) {
    double value;
    if (letter == 'l') return PyLong_FromLongLong(word);
    if (letter == 'b') return PyBool_FromLong((long)(word & 1));
    memcpy(&value, &word, sizeof value);
    return PyFloat_FromDouble(value);
}

static PyObject *results_of(const char *letters, const int64_t *words) {
    Py_ssize_t n = (Py_ssize_t)strlen(letters);
    if (n == 0) Py_RETURN_NONE;
    if (n == 1) return result_of(letters[0], words[0]);
    PyObject *results = PyTuple_New(n);
    for (Py_ssize_t k = 0; results != NULL && k < n; k++) PyTuple_SetItem(results, k, result_of(letters[k], words[k]));
    return results;
}

static PyObject *call(PyObject *self, PyObject *const *given, Py_ssize_t n) {
    Kernel *kernel = PyCapsule_GetPointer(self, NULL);
    if (kernel == NULL) return NULL;
    Arguments arguments;
    arguments.n_words = arguments.length = 0;
    for (Py_ssize_t k = 0; k < n; k++) {
        if (k && !write_text(&arguments, " ", 1)) Py_RETURN_NOTIMPLEMENTED;
        if (!write_argument(&arguments, given[k])) Py_RETURN_NOTIMPLEMENTED;
    }
    const Variant *variant = kernel->first;
    while (variant != NULL && strcmp(variant->types, arguments.types) != 0) variant = variant->next;
    if (variant == NULL) Py_RETURN_NOTIMPLEMENTED;
    int64_t results[MOST_RESULTS] = {0};
    const int64_t *queue = (const int64_t *)(intptr_t)arguments.words[4];
    int64_t n_threads = variant->is_shared && arguments.words[2] > N_THREADS ? queue[N_THREADS] : 1;
    Team *team = n_threads > 1 ? take_team((int)n_threads - 1) : NULL;
    int32_t status;
    PyThreadState *state = PyEval_SaveThread();
    if (team != NULL)
        status = run_shared(team, variant, &arguments);
    else
        status = variant->code(arguments.words, results);
    PyEval_RestoreThread(state);
    if (team != NULL) {
        team->next = idle;
        idle = team;
    }
    if (status) {
        PyErr_Format(PyExc_RuntimeError, "a kernel of the library failed with status %d", (int)status);
        return NULL;
    }
    return results_of(variant->returns, results);
}

static PyMethodDef definition = {"kernel", (PyCFunction)(void (*)(void))call, METH_FASTCALL, NULL};

#if defined(_WIN32)
#define EXPORTED __declspec(dllexport)
#else
#define EXPORTED __attribute__((visibility("default")))
#endif

/* A kernel without variants. */
EXPORTED void *globular_new_kernel(void) { return calloc(1, sizeof(Kernel)); }

/* Add a variant; 0 if there is no memory. */
EXPORTED int globular_add_variant(Kernel *kernel, const char *types, const char *returns, Code code, int is_shared,
                                  int n_scratch, const int *scratch) {
    Variant *variant = calloc(1, sizeof(Variant));
    if (variant == NULL) return 0;
    variant->types = strdup(types);
    variant->returns = strdup(returns);
    variant->scratch = malloc(sizeof(int) * (n_scratch + 1));
    if (!variant->types || !variant->returns || !variant->scratch || strlen(returns) > MOST_RESULTS) return 0;
    memcpy(variant->scratch, scratch, sizeof(int) * n_scratch);
    variant->code = code;
    variant->is_shared = is_shared;
    variant->n_scratch = n_scratch;
    variant->next = kernel->first;
    kernel->first = variant;
    return 1;
}

/* The Python function of a kernel. */
EXPORTED PyObject *globular_function(Kernel *kernel) {
    PyObject *self = PyCapsule_New(kernel, NULL, NULL);
    if (self == NULL) return NULL;
    PyObject *function = PyCFunction_NewEx(&definition, self, NULL);
    Py_DecRef(self);
    return function;
}

/* A forked child has the memory of its parent, but not the threads. */
EXPORTED void globular_forget_threads(void) { idle = NULL; }

/* The highest level of processors (`library.py`) that this one reaches; empty if none. */
EXPORTED const char *globular_level(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("x86-64-v4")) return "x86-64-v4";
    if (__builtin_cpu_supports("x86-64-v3")) return "x86-64-v3";
    return "";
#elif defined(__linux__) && defined(__aarch64__)
    unsigned long has = getauxval(AT_HWCAP), atomics = 1ul << 8, crc = 1ul << 7;
    return (has & atomics) && (has & crc) ? "armv8.2" : "";
#elif defined(__APPLE__) && defined(__aarch64__)
    return "apple-m1";
#else
    return "";
#endif
}
