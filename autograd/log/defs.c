/* defs.c: what the keys of a log stand for, as far as it has been read. */
#include <string.h>

#include "autograd/log/file.h"
#include "autograd/log/parse.h"
#include "tensor/arena.h"

enum { INPUTS_MAX = 1 << 20 };

void *tl_log_file_get(tl_log_file *f, size_t n)
{
    n = (n + 15) / 16 * 16;
    if (f->blocks == NULL || f->blocks->used + n > f->blocks->cap) {
        size_t cap = n > 1 << 16 ? n : 1 << 16;
        tl_log_block *b = tl_calloc(1, sizeof *b + cap);
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

const tl_log_def *tl_log_def_find(const tl_log_file *f, uint64_t key)
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

void tl_log_defs_forget(tl_log_file *f)
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
    d->in = tl_log_file_get(f, (size_t)room * sizeof *d->in);
    d->n_in = d->in == NULL ? -1 : tl_parse_inputs(s, d->in, room);
    return d->n_in >= 0;
}

bool tl_log_def_read(tl_log_file *f, char **field, int n)
{
    tl_log_def *d = n == TL_LOG_FIELDS ? tl_log_file_get(f, sizeof *d) : NULL;
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
    if (d->key == 0 || *d->op == '\0' || !tl_parse_shape(d) || !read_inputs(f, d, field[5]))
        return false;
    for (int i = 2; i < TL_LOG_FIELDS; i++)
        tl_parse_decode(field[i]);
    put_def(f, d);
    return true;
}
