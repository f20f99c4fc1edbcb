/* read.c: the text of a log, read into steps.
 *
 * Nothing in the file is trusted: every field is checked before it is used, and a line that makes
 * no sense is counted and left out. */
#include "autograd/log/read/read.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tensor/memory.h"
#include "tensor/files/file.h"

enum { FIELDS = 11 }; /* of a definition */
enum { INPUTS_MAX = 1 << 20 };

struct tl_log_file {
    char *text;
    tl_bump defs;
    tl_key_map def; /* key -> address of its last definition */
    tl_log_result *result;
    int n_results, cap_results;
    tl_logged_step *step;
    int n_steps, cap_steps;
    int version; /* 2: of SHA-256, 3: of XXH3-128 */
    int64_t damaged, first_damaged;
    bool no_memory;
};

/* ---- fields ---- */

/* The whole number at *s, which moves behind it; -1 if there is none or it is above the limit. */
static int64_t whole(const char **s, int64_t limit)
{
    char *end;
    if (**s < '0' || **s > '9')
        return -1;
    errno = 0;
    int64_t x = strtoll(*s, &end, 10);
    *s = end;
    return errno != 0 || x > limit ? -1 : x;
}

uint64_t tl_log_key_parse(const char *s, size_t n)
{
    const char *end = s + n;
    int64_t pass = 0, at, sub = 0, out = 0;
    if (n > 0 && *s >= '0' && *s <= '9') {
        pass = whole(&s, TL_KEY_UPDATE - 1);
        if (pass < 0 || s == end || *s++ != ':')
            return 0;
    }
    char kind = s < end ? *s++ : '\0';
    bool backward = kind == 'b' || kind == 'c';
    if ((kind != 'f' && !backward && kind != 'u') ||
        (at = whole(&s, TL_KEY_AT_MAX)) < (kind == 'u' ? 0 : 1))
        return 0;
    if (backward && (s == end || *s != '.'))
        return 0;
    if (kind != 'f' && s < end && *s == '.' && (s++, (sub = whole(&s, TL_KEY_SUB_MAX)) < 1))
        return 0;
    if (s < end && (*s++ != '/' || (out = whole(&s, 255)) < 1))
        return 0;
    if (s != end || (kind == 'u' && pass != 0) || at + sub == 0)
        return 0;
    return tl_log_key_pack((tl_log_key){kind == 'u' ? TL_KEY_UPDATE : (int)pass, backward,
                                        kind == 'c', (uint32_t)at, (uint32_t)sub, (int)out});
}

static int hex_value(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* %XX back into bytes, in place. A coded end of line stays as it is: printed, it would pass for one
 * of the report's. */
static void decode(char *s)
{
    char *to = s;
    for (; *s != '\0'; s++, to++) {
        bool coded = *s == '%' && hex_value(s[1]) >= 0 && hex_value(s[2]) >= 0 &&
                     strncmp(s, "%0a", 3) != 0;
        *to = coded ? (char)(16 * hex_value(s[1]) + hex_value(s[2])) : *s;
        s += coded ? 2 : 0;
    }
    *to = '\0';
}

/* d->shape - "4*2+3,64,128", "scalar*3", "mixed*2" or "none" - into parts, rows, last and tail;
 * false if it is no shape. */
static bool parse_shape(tl_log_def *d)
{
    const char *s = d->shape;
    const bool none = strcmp(s, "none") == 0, scalar = strncmp(s, "scalar", 6) == 0;
    int64_t rows = 0, total = 0;
    d->rows = d->last = -1;
    d->tail = none ? "" : scalar ? "scalar" : "mixed";
    d->parts = none ? 0 : 1;
    if (none || scalar || strncmp(s, "mixed", 5) == 0) {
        s += none ? 4 : strlen(d->tail);
        if (*s == '*') {
            s++;
            d->parts = (int)whole(&s, INT_MAX);
        }
        return *s == '\0' && d->parts >= 0;
    }
    for (d->parts = 0;; s++) {
        int64_t times = 1;
        rows = whole(&s, INT64_MAX);
        if (*s == '*') {
            s++;
            times = whole(&s, INT64_MAX);
        }
        if (rows < 0 || times < 1 || times > INT_MAX - d->parts ||
            (rows > 0 && times > (INT64_MAX - total) / rows))
            return false;
        total += rows * times;
        d->parts += (int)times;
        if (*s != '+')
            break;
    }
    d->rows = total;
    d->last = rows;
    d->tail = s;
    return *s == ',' || *s == '\0';
}

static const char *parse_digest(const tl_log_file *f, const char *s)
{
    size_t n = strspn(s, "0123456789abcdef");
    return n == (f->version == 2 ? 64 : 32) && s[n] == '\0' ? s : NULL;
}

/* The number of a step, alone in its field; -1 if it is none. */
static int64_t parse_number(const char *s)
{
    int64_t number = whole(&s, INT64_MAX);
    return *s == '\0' ? number : -1;
}

/* ---- lines ---- */

/* Reads the keys in "f1,-,b3.1" as d's inputs; false if they are no keys. */
static bool read_inputs(tl_log_file *f, tl_log_def *d, const char *s)
{
    int room = 1;
    if (*s == '\0')
        return true;
    for (const char *c = s; *c != '\0' && room < INPUTS_MAX; c++)
        room += *c == ',';
    d->in = tl_bump_get(&f->defs, (size_t)room * sizeof *d->in);
    f->no_memory |= d->in == NULL;
    while (d->in != NULL && d->n_in < room) {
        const size_t n = strcspn(s, ",");
        const uint64_t key = tl_log_key_parse(s, n);
        if (key == 0 && !(n == 1 && *s == '-'))
            return false;
        d->in[d->n_in++] = key;
        if (s[n] == '\0')
            return true;
        s += n + 1;
    }
    return false;
}

static bool read_def(tl_log_file *f, char **field, int n)
{
    if (n != FIELDS)
        return false;
    tl_log_def *d = tl_bump_get(&f->defs, sizeof *d);
    f->no_memory |= d == NULL;
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
    if (d->key == 0 || *d->op == '\0' || !parse_shape(d) || !read_inputs(f, d, field[5]))
        return false;
    for (int i = 2; i < FIELDS; i++)
        decode(field[i]);
    f->no_memory |= !tl_key_map_put(&f->def, d->key, (uint64_t)(uintptr_t)d);
    return true;
}

/* Room for element n of a list; false, which is noted, when out of memory. */
static bool room(tl_log_file *f, void *list, int *cap, int n, size_t size)
{
    bool there = n < INT_MAX / 2 && tl_grow(list, cap, n, size);
    f->no_memory |= !there;
    return there;
}

/* The step that the next results belong to; NULL: none. */
static tl_logged_step *open_step(tl_log_file *f)
{
    tl_logged_step *s = f->n_steps > 0 ? &f->step[f->n_steps - 1] : NULL;
    return s != NULL && !s->complete ? s : NULL;
}

static bool begin_step(tl_log_file *f, char **field, int n)
{
    const bool compiled = n == 4 && strcmp(field[3], "compiled") == 0;
    const int64_t number = n == 3 || compiled ? parse_number(field[1]) : -1;
    if (number < 0 || (strcmp(field[2], "full") != 0 && strcmp(field[2], "part") != 0) ||
        !room(f, &f->step, &f->cap_steps, f->n_steps, sizeof *f->step))
        return false;
    f->step[f->n_steps] = (tl_logged_step){.number = number,
                                           .full = field[2][0] == 'f',
                                           .compiled = compiled,
                                           .order = f->n_steps};
    f->n_steps++;
    return true;
}

static bool end_step(tl_log_file *f, char **field, int n)
{
    tl_logged_step *s = open_step(f);
    if (s == NULL || n != 2 || parse_number(field[1]) != s->number)
        return false;
    s->complete = true;
    return true;
}

static bool read_result(tl_log_file *f, char **field, int n)
{
    tl_logged_step *s = open_step(f);
    const uint64_t key = tl_log_key_parse(field[0], strlen(field[0])),
                   *def = tl_key_map_find(&f->def, key);
    if (s == NULL || def == NULL || n < 2 || n > 4)
        return false;
    const tl_log_def *d = (const tl_log_def *)(uintptr_t)*def;
    const bool alike = n >= 3 && *field[2] == '=';
    tl_log_result r = {key,
                       d,
                       parse_digest(f, field[1]),
                       n >= 3 ? parse_digest(f, field[2] + alike) : NULL,
                       alike || d->parts <= 1,
                       n == 4 ? field[3] : "",
                       field[0]};
    if ((r.all == NULL && strcmp(field[1], "-") != 0) ||
        (n >= 3 && r.part == NULL && strcmp(field[2], "-") != 0))
        return false;
    if (d->parts <= 1)
        r.part = r.all;
    if (!room(f, &f->result, &f->cap_results, f->n_results, sizeof r))
        return false;
    f->result[f->n_results++] = r;
    s->n++;
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
        tl_key_map_free(&f->def); /* a run that was resumed defines its keys again */
        return n == 2 && atoi(field[1]) == f->version;
    }
    if (strcmp(line, "d") == 0)
        return read_def(f, field, n);
    if (strcmp(line, "step") == 0)
        return begin_step(f, field, n);
    return strcmp(line, "end") == 0 ? end_step(f, field, n) : read_result(f, field, n);
}

/* ---- all of it ---- */

/* By key; results of one key in the order of the file. */
static int by_key_and_place(const void *a, const void *b)
{
    const tl_log_result *x = a, *y = b;
    int order = tl_log_by_key(a, b);
    return order != 0 ? order : (x->line > y->line) - (x->line < y->line);
}

/* Sorts results by key, and keeps the last of each key. Returns how many it keeps. */
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

/* By number; of steps with one number, complete ones come last, and then later ones. */
static int by_number(const void *a, const void *b)
{
    const tl_logged_step *x = a, *y = b;
    if (x->number != y->number)
        return x->number < y->number ? -1 : 1;
    if (x->complete != y->complete)
        return x->complete ? 1 : -1;
    return x->order < y->order ? -1 : 1;
}

/* Deals the results out to the steps, in the order of the file. Keeps the last of the steps with
 * one number. */
static void sort_steps(tl_log_file *f)
{
    int kept = 0, first = 0;
    for (int i = 0; i < f->n_steps; i++) {
        tl_logged_step *s = &f->step[i];
        tl_log_result *result = s->n > 0 ? f->result + first : NULL;
        first += s->n;
        s->n = sort_results(result, s->n);
        s->result = result;
    }
    if (f->n_steps > 0)
        qsort(f->step, (size_t)f->n_steps, sizeof *f->step, by_number);
    for (int i = 0; i < f->n_steps; i++)
        if (i + 1 == f->n_steps || f->step[i + 1].number != f->step[i].number)
            f->step[kept++] = f->step[i];
    f->n_steps = kept;
}

static void read_text(tl_log_file *f, size_t n)
{
    char *line = f->text, *end = f->text + n;
    int64_t hurt = 0; /* the last damaged line */
    for (int64_t number = 1; line < end && !f->no_memory; number++) {
        char *stop = memchr(line, '\n', (size_t)(end - line));
        if (stop == NULL)
            break; /* cut off */
        *stop = '\0';
        if (hurt == number - 1 && hurt > 0 && strncmp(line, "tally-log\t", 10) == 0)
            f->damaged--; /* half a line, of a crash: the run was resumed behind it */
        if (strlen(line) != (size_t)(stop - line) || !read_line(f, line)) {
            hurt = number;
            f->first_damaged = f->damaged++ == 0 ? number : f->first_damaged;
            if (open_step(f) != NULL)
                open_step(f)->damaged = true;
        }
        line = stop + 1;
    }
    sort_steps(f);
}

static tl_status read_file(tl_log_file *f, const char *path, tl_err *err)
{
    static const char head[] = TL_LOG_HEAD;
    size_t n;
    if (getentropy(&f->def.salt, sizeof f->def.salt) != 0)
        f->def.salt = (uint64_t)(uintptr_t)f;
    TL_TRY(tl_file_read(path, (size_t)1 << 40, &f->text, &n, err));
    if (n == 0)
        return tl_fail(err, TL_EFORMAT, "%.300s is empty", path);
    if (n < sizeof head - 1 || memcmp(f->text, head, sizeof head - 1) != 0)
        return tl_fail(err, TL_EFORMAT, "%.300s is not a log: it does not begin with 'tally-log'",
                       path);
    f->version = atoi(f->text + sizeof head - 1);
    if (f->version != 2 && f->version != TL_LOG_VERSION)
        return tl_fail(err, TL_EFORMAT,
                       "%.300s is a log of another version (%.10s); this program reads versions 2 "
                       "and %d",
                       path, f->text + sizeof head - 1, TL_LOG_VERSION);
    read_text(f, n);
    return f->no_memory
               ? tl_fail(err, TL_ENOMEM, "%.300s: no memory for a log of %zu bytes", path, n)
               : TL_OK;
}

tl_status tl_log_read(tl_log_file **out, const char *path, tl_err *err)
{
    *out = tl_calloc(1, sizeof **out);
    if (*out == NULL)
        return tl_fail(err, TL_ENOMEM, "%.300s: no memory to read a log", path);
    tl_status s = read_file(*out, path, err);
    if (s != TL_OK) {
        tl_log_file_close(*out);
        *out = NULL;
    }
    return s;
}

void tl_log_file_close(tl_log_file *f)
{
    if (f == NULL)
        return;
    tl_bump_free(&f->defs);
    tl_key_map_free(&f->def);
    tl_free_raw(f->text);
    tl_free_raw(f->result);
    tl_free_raw(f->step);
    tl_free_raw(f);
}

const char *tl_log_hash(const tl_log_file *f) { return f->version == 2 ? "SHA-256" : "XXH3-128"; }

int tl_log_steps(const tl_log_file *f) { return f->n_steps; }

const tl_logged_step *tl_log_step_at(const tl_log_file *f, int i)
{
    return i < 0 || i >= f->n_steps ? NULL : &f->step[i];
}

int64_t tl_log_damaged(const tl_log_file *f, int64_t *first)
{
    *first = f->first_damaged;
    return f->damaged;
}

const tl_log_result *tl_log_find(const tl_logged_step *s, uint64_t key)
{
    const tl_log_result want = {.key = key};
    return s->n == 0 || key == 0
               ? NULL
               : bsearch(&want, s->result, (size_t)s->n, sizeof want, tl_log_by_key);
}
