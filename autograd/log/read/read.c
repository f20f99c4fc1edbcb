/* read.c: a log's text into steps. Nothing in the file is trusted: every field is
 * checked before it is used, and what makes no sense is counted and left out. */
#include "autograd/log/read/internal.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tensor/memory.h"
#include "tensor/files/file.h"

enum { FIELDS = 11 }; /* of a definition */

/* Memory in blocks that never move, freed together. */
typedef struct block {
    struct block *next;
    size_t used, cap;
    _Alignas(16) char bytes[];
} block;

typedef struct {
    tl_logged_step s;
    size_t first;  /* of its results */
    int64_t order; /* in the file */
} record;

struct tl_log_file {
    char *text;
    block *blocks;
    tl_log_result *result;
    size_t n_results, cap_results;
    record *step;
    int n_steps, cap_steps;
    const tl_log_def **def; /* open addressing by key */
    size_t n_defs, cap_defs;
    uint64_t salt; /* of the addressing */
    int version;   /* 2: of SHA-256, 3: of XXH3-128 */
    int64_t damaged, first_damaged;
    bool no_memory;
};

/* ---- what its keys stand for ---- */

enum { INPUTS_MAX = 1 << 20 };

/* n bytes that stay as long as the file; NULL when out of memory, which is noted. */
static void *get(tl_log_file *f, size_t n)
{
    n = (n + 15) / 16 * 16;
    if (f->blocks == NULL || f->blocks->used + n > f->blocks->cap) {
        size_t cap = n > 1 << 16 ? n : 1 << 16;
        block *b = tl_calloc(1, sizeof *b + cap);
        if (b == NULL) {
            f->no_memory = true;
            return NULL;
        }
        b->next = f->blocks;
        b->cap = cap;
        f->blocks = b;
    }
    f->blocks->used += n;
    return f->blocks->bytes + f->blocks->used - n;
}

/* Where the search for a key begins: a number that the file's author does not know goes in, so that
 * keys cannot be chosen to meet. */
static size_t slot(const tl_log_file *f, uint64_t key)
{
    uint64_t h = (key ^ f->salt) * 0x9e3779b97f4a7c15u;
    h = (h ^ h >> 32 ^ f->salt) * 0xbf58476d1ce4e5b9u;
    size_t i = (size_t)(h >> 20) & (f->cap_defs - 1);
    while (f->def[i] != NULL && f->def[i]->key != key)
        i = (i + 1) & (f->cap_defs - 1);
    return i;
}

/* The last definition of a key; NULL: none. */
static const tl_log_def *def_find(const tl_log_file *f, uint64_t key)
{
    return f->cap_defs == 0 ? NULL : f->def[slot(f, key)];
}

static void put_def(tl_log_file *f, const tl_log_def *d)
{
    if (2 * (f->n_defs + 1) > f->cap_defs) {
        tl_log_file bigger = {.cap_defs = f->cap_defs ? 2 * f->cap_defs : 16, .salt = f->salt};
        bigger.def = tl_calloc(bigger.cap_defs, sizeof *bigger.def);
        if (bigger.def == NULL) {
            f->no_memory = true;
            return;
        }
        for (size_t i = 0; i < f->cap_defs; i++)
            if (f->def[i] != NULL)
                bigger.def[slot(&bigger, f->def[i]->key)] = f->def[i];
        tl_free_raw(f->def);
        f->def = bigger.def;
        f->cap_defs = bigger.cap_defs;
    }
    size_t i = slot(f, d->key);
    f->n_defs += f->def[i] == NULL;
    f->def[i] = d;
}

/* No key stands for anything any more. */
static void defs_forget(tl_log_file *f)
{
    tl_free_raw(f->def);
    f->def = NULL;
    f->n_defs = f->cap_defs = 0;
}

static bool read_inputs(tl_log_file *f, tl_log_def *d, const char *s)
{
    int room = 1;
    if (*s == '\0')
        return true;
    for (const char *c = s; *c != '\0' && room < INPUTS_MAX; c++)
        room += *c == ',';
    d->in = get(f, (size_t)room * sizeof *d->in);
    d->n_in = d->in == NULL ? -1 : tl_log_inputs_parse(s, d->in, room);
    return d->n_in >= 0;
}

/* What a line of definition says; false if it makes no sense. */
static bool def_read(tl_log_file *f, char **field, int n)
{
    tl_log_def *d = n == FIELDS ? get(f, sizeof *d) : NULL;
    if (d == NULL)
        return false;
    *d = (tl_log_def){.key = tl_log_key_parse(field[1], strlen(field[1])),
                      .op = field[2],
                      .dtype = field[3],
                      .shape = field[4],
                      .gradient = strcmp(field[6], "gradient") == 0,
                      .update = strcmp(field[6], "update") == 0,
                      .fast = strcmp(field[7], "fast") == 0,
                      .name = field[8],
                      .attrs = field[9],
                      .place = field[10]};
    if (d->key == 0 || *d->op == '\0' || !tl_log_shape_parse(d) || !read_inputs(f, d, field[5]))
        return false;
    for (int i = 2; i < FIELDS; i++)
        tl_log_decode(field[i]);
    put_def(f, d);
    return true;
}

/* ---- its steps ---- */

/* Room for one more of n in an array; false when out of memory. */
static bool room(tl_log_file *f, void *array, size_t n, size_t *cap, size_t size)
{
    void **p = array;
    if (n < *cap)
        return true;
    void *grown = tl_realloc(*p, (*cap ? 2 * *cap : 256) * size);
    if (grown == NULL) {
        f->no_memory = true;
        return false;
    }
    *p = grown;
    *cap = *cap ? 2 * *cap : 256;
    return true;
}

/* ---- steps ---- */

static record *open_step(tl_log_file *f)
{
    record *s = f->n_steps > 0 ? &f->step[f->n_steps - 1] : NULL;
    return s != NULL && !s->s.complete ? s : NULL;
}

static bool begin_step(tl_log_file *f, char **field, int n)
{
    int64_t number;
    const char *s = n == 3 || (n == 4 && strcmp(field[3], "compiled") == 0) ? field[1] : "";
    size_t cap = (size_t)f->cap_steps;
    if (!tl_log_whole(&s, &number) || *s != '\0' ||
        (strcmp(field[2], "full") != 0 && strcmp(field[2], "part") != 0))
        return false;
    if (f->n_steps == INT_MAX / 2 || !room(f, &f->step, (size_t)f->n_steps, &cap, sizeof *f->step))
        return false;
    f->cap_steps = (int)cap;
    f->step[f->n_steps] =
        (record){.s = {.number = number, .full = field[2][0] == 'f', .compiled = n == 4},
                 .first = f->n_results,
                 .order = f->n_steps};
    f->n_steps++;
    return true;
}

static bool end_step(tl_log_file *f, char **field, int n)
{
    record *r = open_step(f);
    int64_t number;
    const char *s = n == 2 ? field[1] : "";
    if (r == NULL || !tl_log_whole(&s, &number) || *s != '\0' || number != r->s.number)
        return false;
    r->s.complete = true;
    return true;
}

static const char *digest(const tl_log_file *f, const char *s)
{
    size_t n = strspn(s, "0123456789abcdef");
    return n == (f->version == 2 ? 64 : 32) && s[n] == '\0' ? s : NULL;
}

static bool read_result(tl_log_file *f, char **field, int n)
{
    record *s = open_step(f);
    uint64_t key = tl_log_key_parse(field[0], strlen(field[0]));
    const tl_log_def *d = key == 0 ? NULL : def_find(f, key);
    if (s == NULL || d == NULL || n < 2 || n > 4 || s->s.n == INT_MAX)
        return false;
    bool alike = n >= 3 && *field[2] == '=';
    tl_log_result r = {key,
                       d,
                       digest(f, field[1]),
                       n >= 3 ? digest(f, field[2] + alike) : NULL,
                       alike || d->parts <= 1,
                       n == 4 ? field[3] : "",
                       field[0]};
    if ((r.all == NULL && strcmp(field[1], "-") != 0) ||
        (n >= 3 && r.part == NULL && strcmp(field[2], "-") != 0))
        return false;
    if (d->parts <= 1)
        r.part = r.all;
    if (!room(f, &f->result, f->n_results, &f->cap_results, sizeof r))
        return false;
    f->result[f->n_results++] = r;
    s->s.n++;
    return true;
}

static bool read_line(tl_log_file *f, char *line)
{
    char *field[FIELDS + 1];
    int n = 0;
    if (*line == '#' || *line == '\0')
        return true;
    for (char *s = line; s != NULL && n <= FIELDS; n++) {
        field[n] = s;
        s = strchr(s, '\t');
        if (s != NULL)
            *s++ = '\0';
    }
    if (strcmp(line, "tally-log") == 0) {
        defs_forget(f); /* a run that was resumed says again what its keys stand for */
        return n == 2 && atoi(field[1]) == f->version;
    }
    if (strcmp(line, "d") == 0)
        return def_read(f, field, n);
    if (strcmp(line, "step") == 0)
        return begin_step(f, field, n);
    return strcmp(line, "end") == 0 ? end_step(f, field, n) : read_result(f, field, n);
}

static int by_key(const void *a, const void *b)
{
    uint64_t x = ((const tl_log_result *)a)->key, y = ((const tl_log_result *)b)->key;
    return (x > y) - (x < y);
}

/* The same, and of the same key in the order of the file: text lies in it. */
static int by_key_and_place(const void *a, const void *b)
{
    const tl_log_result *x = a, *y = b;
    int order = by_key(a, b);
    return order != 0 ? order : (x->line > y->line) - (x->line < y->line);
}

/* Of results of the same key the last counts. */
static int sort_results(tl_log_result *r, int n)
{
    int kept = 0;
    if (n > 0)
        qsort(r, (size_t)n, sizeof *r, by_key_and_place);
    for (int i = 0; i < n; i++)
        if (i + 1 == n || r[i + 1].key != r[i].key)
            r[kept++] = r[i];
    return kept;
}

/* By number; of the same number complete ones last, and later ones last. */
static int by_number(const void *a, const void *b)
{
    const record *x = a, *y = b;
    if (x->s.number != y->s.number)
        return x->s.number < y->s.number ? -1 : 1;
    if (x->s.complete != y->s.complete)
        return x->s.complete ? 1 : -1;
    return x->order < y->order ? -1 : 1;
}

static void sort_steps(tl_log_file *f)
{
    int kept = 0;
    for (int i = 0; i < f->n_steps; i++) {
        tl_log_result *r = f->n_results > 0 ? f->result + f->step[i].first : NULL;
        f->step[i].s.n = sort_results(r, f->step[i].s.n);
        f->step[i].s.result = r;
    }
    if (f->n_steps > 0)
        qsort(f->step, (size_t)f->n_steps, sizeof *f->step, by_number);
    for (int i = 0; i < f->n_steps; i++)
        if (i + 1 == f->n_steps || f->step[i + 1].s.number != f->step[i].s.number)
            f->step[kept++] = f->step[i];
    f->n_steps = kept;
}

static void read_text(tl_log_file *f, size_t n)
{
    char *line = f->text, *end = f->text + n;
    for (int64_t number = 1; line < end && !f->no_memory; number++) {
        char *stop = memchr(line, '\n', (size_t)(end - line));
        if (stop == NULL)
            break; /* cut off */
        *stop = '\0';
        if (strlen(line) != (size_t)(stop - line) || !read_line(f, line)) {
            f->first_damaged = f->damaged++ == 0 ? number : f->first_damaged;
            if (open_step(f) != NULL)
                open_step(f)->s.damaged = true;
        }
        line = stop + 1;
    }
    sort_steps(f);
}

tl_status tl_log_read(tl_log_file **out, const char *path, tl_err *err)
{
    static const char head[] = TL_LOG_HEAD;
    size_t n;
    tl_log_file *f = tl_calloc(1, sizeof *f);
    *out = NULL;
    if (f == NULL)
        return tl_fail(err, TL_ENOMEM, "%.300s: no memory to read a log", path);
    if (getentropy(&f->salt, sizeof f->salt) != 0)
        f->salt = (uint64_t)(uintptr_t)f;
    tl_status s = tl_file_read(path, (size_t)1 << 40, &f->text, &n, err);
    if (s == TL_OK && n == 0)
        s = tl_fail(err, TL_EFORMAT, "%.300s is empty", path);
    if (s == TL_OK && (n < sizeof head - 1 || memcmp(f->text, head, sizeof head - 1) != 0))
        s = tl_fail(err, TL_EFORMAT, "%.300s is no log: it does not begin with 'tally-log'", path);
    if (s == TL_OK)
        f->version = atoi(f->text + sizeof head - 1);
    if (s == TL_OK && f->version != 2 && f->version != TL_LOG_VERSION)
        s = tl_fail(err, TL_EFORMAT,
                    "%.300s is a log of another version (%.10s); this program reads versions 2 and "
                    "%d",
                    path, f->text + sizeof head - 1, TL_LOG_VERSION);
    if (s == TL_OK)
        read_text(f, n);
    if (s == TL_OK && f->no_memory)
        s = tl_fail(err, TL_ENOMEM, "%.300s: no memory for a log of %zu bytes", path, n);
    if (s != TL_OK) {
        tl_log_file_close(f);
        return s;
    }
    *out = f;
    return TL_OK;
}

void tl_log_file_close(tl_log_file *f)
{
    if (f == NULL)
        return;
    while (f->blocks != NULL) {
        block *b = f->blocks;
        f->blocks = b->next;
        tl_free_raw(b);
    }
    tl_free_raw(f->text);
    tl_free_raw(f->result);
    tl_free_raw(f->step);
    tl_free_raw(f->def);
    tl_free_raw(f);
}

const char *tl_log_hash(const tl_log_file *f) { return f->version == 2 ? "SHA-256" : "XXH3-128"; }

int tl_log_steps(const tl_log_file *f) { return f->n_steps; }

const tl_logged_step *tl_log_step_at(const tl_log_file *f, int i)
{
    return i < 0 || i >= f->n_steps ? NULL : &f->step[i].s;
}

int64_t tl_log_damaged(const tl_log_file *f, int64_t *first)
{
    *first = f->first_damaged;
    return f->damaged;
}

const tl_log_result *tl_log_find(const tl_logged_step *s, uint64_t key)
{
    const tl_log_result want = {.key = key};
    return s->n == 0 || key == 0 ? NULL
                                 : bsearch(&want, s->result, (size_t)s->n, sizeof want, by_key);
}
