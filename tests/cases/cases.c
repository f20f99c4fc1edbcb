/* cases.c: the list of tables, and inputs read from their words. */
#include "tests/cases/cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* clang-format off */
#define FAMILIES(X)                                                                              \
    X(unary) X(binary) X(compare) X(reduce) X(matmul) X(rows) X(norm) X(norms) X(loss)           \
    X(attention) X(rotary) X(rotary_halves) X(index) X(views) X(move) X(random) X(train)         \
    X(activation) X(scan) X(gather) X(smooth) X(products) X(join) X(positions) X(integer)       \
    X(composed) X(sort) X(conv) X(recur)
/* clang-format on */

#define X(f)                             \
    extern const tl_case tl_cases_##f[]; \
    extern const int tl_cases_##f##_count;
FAMILIES(X)
#undef X

int tl_case_count(void)
{
    int n = 0;
#define X(f) n += tl_cases_##f##_count;
    FAMILIES(X)
#undef X
    return n;
}

const tl_case *tl_case_at(int i)
{
#define X(f)                      \
    if (i < tl_cases_##f##_count) \
        return &tl_cases_##f[i];  \
    i -= tl_cases_##f##_count;
    FAMILIES(X)
#undef X
    return NULL;
}

static const char *const dtype_words[] = {"f64", "f32", "f16", "bf16", "i64", "bool"};

static void bad(const tl_case *c, const char *word)
{
    fprintf(stderr, "case %s %s: '%.40s' is not understood in \"%s\"\n", c->op, c->name, word,
            c->in);
    abort();
}

/* A word and the number that may follow it. */
static bool is(const char *word, size_t n, const char *name, int64_t *number)
{
    size_t k = strlen(name);
    if (n < k || strncmp(word, name, k) != 0)
        return false;
    if (n == k)
        return true;
    *number = atoll(word + k);
    return word[k] >= '0' && word[k] <= '9';
}

static void read_word(const tl_case *c, case_input *in, const char *w, size_t n)
{
    static const char *const domains[] = {"normal", "pos",  "away", "unit", "apart", "between",
                                          "below",  "from", "mask", "rate", "count"};
    static const char *const layouts[] = {"row",     "turned", "padded",
                                          "strided", "heads",  "expanded"};
    if (is(w, n, "fixed", &in->n)) {
        in->fixed = true;
        return;
    }
    for (int i = 0; i < (int)(sizeof domains / sizeof *domains); i++)
        if (is(w, n, domains[i], &in->n)) {
            in->domain = (case_domain)i;
            in->fixed |= i >= CASE_BELOW;
            return;
        }
    for (int i = 0; i < (int)(sizeof layouts / sizeof *layouts); i++)
        if (is(w, n, layouts[i], &in->n)) {
            in->layout = (case_layout)i;
            return;
        }
    bad(c, w);
}

static tl_dtype read_dtype(const tl_case *c, const char *w, tl_dtype star)
{
    if (*w == '*')
        return star;
    if (*w == 'c' && w[1] == '[')
        return tl_dtype_compute(star);
    for (int i = 0; i < (int)(sizeof dtype_words / sizeof *dtype_words); i++)
        if (strncmp(w, dtype_words[i], strlen(dtype_words[i])) == 0)
            return (tl_dtype)(TL_F64 + i);
    bad(c, w);
    return TL_F32;
}

static void swap(tl_shape *s, int a, int b)
{
    int64_t d = s->dim[a];
    s->dim[a] = s->dim[b];
    s->dim[b] = d;
}

static void place(const tl_case *c, case_input *in)
{
    tl_shape *s = &in->leaf;
    *s = in->shape;
    if (s->ndim < (in->layout == CASE_HEADS    ? 3
                   : in->layout == CASE_TURNED ? 2
                   : in->layout == CASE_ROW    ? 0
                                               : 1))
        bad(c, "layout of too few dims");
    switch (in->layout) {
    case CASE_ROW: break;
    case CASE_TURNED: swap(s, s->ndim - 1, s->ndim - 2); break;
    case CASE_PADDED: s->dim[s->ndim - 1] += 3; break;
    case CASE_STRIDED: s->dim[s->ndim - 1] = 2 * s->dim[s->ndim - 1] + 1; break;
    case CASE_HEADS: swap(s, 1, 2); break;
    case CASE_EXPANDED: s->dim[0] = 1; break;
    }
}

static const char *read_input(const tl_case *c, case_input *in, const char *w, tl_dtype star)
{
    if (*w == '-')
        return w + 1;
    in->present = true;
    in->dtype = read_dtype(c, w, star);
    w = strchr(w, '[');
    if (w == NULL)
        bad(c, "[ wanted");
    while (*w != ']') {
        w++;
        if (*w != ']')
            in->shape.dim[in->shape.ndim++] = strtoll(w, (char **)(uintptr_t)&w, 10);
        if (*w != ',' && *w != ']')
            bad(c, w);
    }
    for (w++; *w == ':';) {
        size_t n = strcspn(++w, ": ");
        read_word(c, in, w, n);
        w += n;
    }
    place(c, in);
    return w;
}

case_run tl_case_run(const tl_case *c, tl_dtype dtype)
{
    case_run r = {.c = c, .dtype = dtype};
    for (const char *w = c->in; *w != '\0';) {
        if (*w == ' ') {
            w++;
            continue;
        }
        if (r.n == CASE_INPUTS)
            bad(c, w);
        w = read_input(c, &r.in[r.n++], w, dtype);
    }
    snprintf(r.label, sizeof r.label, "%s %s %s", c->op, c->name,
             strchr(c->in, '*') != NULL ? dtype_words[dtype - TL_F64] : "as listed");
    return r;
}

bool tl_case_dtype(const tl_case *c, int i, tl_dtype *dtype)
{
    bool one = c->flags & (CASE_BIG | CASE_F32) || strchr(c->in, '*') == NULL;
    *dtype = one ? TL_F32 : (tl_dtype)(TL_F64 + i);
    return i < (one ? 1 : 4);
}

void tl_case_attr(const tl_op *op, case_attrs *a, const char *name, double value)
{
    for (const tl_attr *f = op->attr; f != NULL && f->name != NULL; f++) {
        if (strcmp(f->name, name) != 0)
            continue;
        void *p = a->bytes + f->offset;
        switch (f->kind) {
        case TL_ATTR_DIM:
        case TL_ATTR_I64: *(int64_t *)p = (int64_t)value; return;
        case TL_ATTR_INT: *(int *)p = (int)value; return;
        case TL_ATTR_F64: *(double *)p = value; return;
        case TL_ATTR_BOOL: *(bool *)p = value != 0; return;
        default: break;
        }
    }
    fprintf(stderr, "op %s has no number '%s' among its attributes\n", op->name, name);
    abort();
}

tl_shape tl_case_shape(const double *p)
{
    tl_shape s = {.ndim = (int)p[0]};
    for (int i = 0; i < s.ndim; i++)
        s.dim[i] = (int64_t)p[i + 1];
    return s;
}
