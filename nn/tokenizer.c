/* tokenizer.c: byte-level BPE. Text is split at added tokens, then into words by the class of each
 * character, and each word's bytes are merged by rank. */
#include "nn/tokenizer.h"

#include <string.h>

#include "nn/unicode_classes.h"
#include "tensor/files/bytes.h"

/* ---- tables ---- */

int32_t *tl_token_place(const tl_tokenizer *k, const char *bytes, size_t n)
{
    for (uint64_t h = tl_mix(tl_mix_elements(k->merge.salt, bytes, n, 1), n);; h++) {
        int32_t *at = &k->by_bytes[h & (k->places - 1)];
        if (*at < 0 || (k->token[*at].n == n && memcmp(k->token[*at].bytes, bytes, n) == 0))
            return at;
    }
}

static tl_merge merge_of(const tl_tokenizer *k, int32_t left, int32_t right)
{
    const uint64_t *found = tl_key_map_find(&k->merge, tl_merge_key(left, right));
    return found == NULL ? (tl_merge){0, -1} : (tl_merge){(int32_t)(*found >> 32), (int32_t)*found};
}

/* ---- characters ---- */

enum { OTHER, LETTER, NUMBER, SPACE };

/* The class of the character at s, which has *length of the n > 0 bytes. A byte that begins no
 * character counts as a symbol. */
static int class_of(const char *s, size_t n, size_t *length)
{
    size_t low = 0, high = sizeof tl_unicode_classes / sizeof *tl_unicode_classes;
    uint32_t x = (unsigned char)*s;
    *length = tl_utf8_length(s, n);
    if (*length == 0) {
        *length = 1;
        return OTHER;
    }
    if (*length > 1)
        x &= 0x7fu >> *length;
    for (size_t i = 1; i < *length; i++)
        x = x << 6 | ((unsigned char)s[i] & 0x3f);
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (tl_unicode_classes[middle] >> 2 <= x)
            low = middle;
        else
            high = middle;
    }
    return (int)(tl_unicode_classes[low] & 3);
}

/* The end of a run of at most `most` characters of one class that begins at `at`. */
static size_t run(const char *s, size_t n, size_t at, int class, int most)
{
    size_t length;
    while (at < n && most-- > 0 && class_of(s + at, n - at, &length) == class)
        at += length;
    return at;
}

/* The length of a contraction at s: 's, 't, 're, 've, 'm, 'll or 'd; 0: there is none. With
 * any_case capitals count, and the long s counts as an s. */
static size_t contraction(const char *s, size_t n, bool any_case)
{
    static const char *const endings[] = {"s", "t", "re", "ve", "m", "ll", "d"};
    if (n < 2 || *s != '\'')
        return 0;
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        size_t k = 0, length = strlen(endings[i]);
        while (k < length && k + 1 < n &&
               (s[k + 1] == endings[i][k] || (any_case && s[k + 1] == endings[i][k] - 32)))
            k++;
        if (k == length)
            return k + 1;
    }
    return any_case && n > 2 && memcmp(s + 1, "\xc5\xbf", 2) == 0 ? 3 : 0;
}

static bool is_break(char c) { return c == '\n' || c == '\r'; }

/* The length of a word of white space at s. It leaves the last character of the space to the word
 * that follows, unless there is only one or nothing follows. */
static size_t space(const char *s, size_t n, bool llama3)
{
    size_t end = run(s, n, 0, SPACE, INT32_MAX), last = end, length;
    for (size_t i = end; llama3 && i > 0; i--)
        if (is_break(s[i - 1]))
            return i;
    if (end == n)
        return end;
    while (((unsigned char)s[--last] & 0xc0) == 0x80)
        continue;
    (void)class_of(s, n, &length);
    return last > 0 ? last : length;
}

/* The length of the first word of n > 0 bytes. */
static size_t word(const tl_tokenizer *k, const char *s, size_t n)
{
    size_t length, end = contraction(s, n, k->llama3), at = *s == ' ';
    if (end > 0)
        return end;
    int class = class_of(s, n, &length), next = -1;
    if (k->llama3) {
        if (class == LETTER)
            return run(s, n, 0, LETTER, INT32_MAX);
        if (class != NUMBER && !is_break(*s) &&
            (end = run(s, n, length, LETTER, INT32_MAX)) > length)
            return end;
        if (class == NUMBER)
            return run(s, n, 0, NUMBER, 3);
    }
    if (at < n)
        next = class_of(s + at, n - at, &length);
    if (next == OTHER) {
        end = run(s, n, at, OTHER, INT32_MAX);
        while (k->llama3 && end < n && is_break(s[end]))
            end++;
        return end;
    }
    if (!k->llama3 && (next == LETTER || next == NUMBER))
        return run(s, n, at, next, INT32_MAX);
    return space(s, n, k->llama3);
}

/* ---- merging ---- */

typedef struct {
    int32_t id;           /* -1: it has been merged into the one before */
    int32_t before, next; /* its neighbours; -1: none */
} symbol;
/* A merge that may be made at symbol `at`, unless its symbols are merged otherwise first. */
typedef struct {
    int32_t rank, at, id;
} candidate;
typedef struct {
    const tl_tokenizer *k;
    int64_t *ids, room, n;
    symbol *symbol;
    candidate *heap; /* the lowest rank first, then the leftmost */
    size_t most;     /* bytes of the longest word that there is room for */
    size_t heaped;
} encoder;

static void give(encoder *e, int64_t id)
{
    if (e->n < e->room)
        e->ids[e->n] = id;
    e->n++;
}

static bool earlier(candidate a, candidate b)
{
    return a.rank != b.rank ? a.rank < b.rank : a.at < b.at;
}

static void push(encoder *e, int32_t at)
{
    if (at < 0 || e->symbol[at].next < 0)
        return;
    const tl_merge m = merge_of(e->k, e->symbol[at].id, e->symbol[e->symbol[at].next].id);
    if (m.id < 0)
        return;
    const candidate c = {m.rank, at, m.id};
    size_t i = e->heaped++;
    for (; i > 0 && earlier(c, e->heap[(i - 1) / 2]); i = (i - 1) / 2)
        e->heap[i] = e->heap[(i - 1) / 2];
    e->heap[i] = c;
}

static candidate pop(encoder *e)
{
    const candidate first = e->heap[0], last = e->heap[--e->heaped];
    size_t i = 0, k;
    for (; (k = 2 * i + 1) < e->heaped; i = k) {
        k += k + 1 < e->heaped && earlier(e->heap[k + 1], e->heap[k]);
        if (!earlier(e->heap[k], last))
            break;
        e->heap[i] = e->heap[k];
    }
    e->heap[i] = last;
    return first;
}

/* Makes room for a word of n bytes. Each merge adds at most two candidates. */
static tl_status grow(encoder *e, size_t n, tl_err *err)
{
    if (n <= e->most)
        return TL_OK;
    symbol *s = n < INT32_MAX / 4 ? tl_realloc(e->symbol, 2 * n * sizeof *s) : NULL;
    if (s != NULL)
        e->symbol = s;
    candidate *h = s != NULL ? tl_realloc(e->heap, 6 * n * sizeof *h) : NULL;
    if (h == NULL)
        return tl_fail(err, TL_ENOMEM, "tl_tokenizer_encode: no memory for a word of %zu bytes", n);
    e->heap = h;
    e->most = 2 * n;
    return TL_OK;
}

static tl_status encode_word(encoder *e, const char *s, size_t n, tl_err *err)
{
    const int32_t *whole = e->k->whole_words ? tl_token_place(e->k, s, n) : NULL;
    if (whole != NULL && *whole >= 0) {
        give(e, *whole);
        return TL_OK;
    }
    TL_TRY(grow(e, n, err));
    e->heaped = 0;
    for (size_t i = 0; i < n; i++)
        e->symbol[i] = (symbol){e->k->byte[(unsigned char)s[i]], (int32_t)i - 1,
                                i + 1 < n ? (int32_t)i + 1 : -1};
    for (size_t i = 0; i < n; i++)
        push(e, (int32_t)i);
    while (e->heaped > 0) {
        candidate c = pop(e);
        symbol *left = &e->symbol[c.at];
        if (left->id < 0 || left->next < 0)
            continue;
        symbol *right = &e->symbol[left->next];
        const tl_merge m = merge_of(e->k, left->id, right->id);
        if (m.id != c.id) /* one of the two has been merged otherwise */
            continue;
        left->id = m.id;
        left->next = right->next;
        right->id = -1;
        if (left->next >= 0)
            e->symbol[left->next].before = c.at;
        push(e, left->before);
        push(e, c.at);
    }
    for (int32_t i = 0; i >= 0; i = e->symbol[i].next)
        give(e, e->symbol[i].id);
    return TL_OK;
}

/* The longest added token at s, among those that are normalized or those that are not; -1: none. */
static int64_t added_at(const tl_tokenizer *k, const char *s, size_t n, bool normalized)
{
    int64_t best = -1;
    for (size_t i = k->begins[normalized][(unsigned char)*s] ? 0 : k->n_added; i < k->n_added;
         i++) {
        const tl_token *t = &k->token[k->added[i]];
        if (t->normalized == normalized && t->n > 0 && t->n <= n &&
            memcmp(t->bytes, s, t->n) == 0 && (best < 0 || t->n > k->token[best].n))
            best = k->added[i];
    }
    return best;
}

/* Pass 0 splits text at added tokens that are not normalized, pass 1 the parts between them at
 * those that are, and pass 2 the rest into words. */
static tl_status encode(encoder *e, const char *s, size_t n, int pass, tl_err *err)
{
    size_t begin = 0;
    for (size_t i = 0; pass == 2 && i < n;) {
        size_t length = word(e->k, s + i, n - i);
        TL_TRY(encode_word(e, s + i, length, err));
        i += length;
    }
    for (size_t i = 0; pass < 2 && i <= n;) {
        int64_t id = i < n ? added_at(e->k, s + i, n - i, pass == 1) : -1;
        if (id >= 0 || i == n) {
            TL_TRY(encode(e, s + begin, i - begin, pass + 1, err));
            if (id < 0)
                break;
            give(e, id);
            begin = i += e->k->token[id].n;
        } else
            i++;
    }
    return TL_OK;
}

int64_t tl_tokenizer_encode(const tl_tokenizer *k, const char *text, size_t n, bool around,
                            int64_t *ids, int64_t room, tl_err *err)
{
    if (TL_NEED(err, k) != TL_OK || TL_NEED(err, text) != TL_OK ||
        tl_need(err, __func__, "ids", ids != NULL, room) != TL_OK)
        return -1;
    encoder e = {.k = k, .ids = ids, .room = room};
    for (int i = 0; around && i < k->n_before; i++)
        give(&e, k->before[i]);
    tl_status s = encode(&e, text, n, 0, err);
    for (int i = 0; around && i < k->n_after; i++)
        give(&e, k->after[i]);
    tl_free_raw(e.symbol);
    tl_free_raw(e.heap);
    return s == TL_OK ? e.n : -1;
}

int64_t tl_tokenizer_size(const tl_tokenizer *k) { return k == NULL ? 0 : k->size; }

const char *tl_tokenizer_bytes(const tl_tokenizer *k, int64_t id, size_t *n)
{
    const tl_token none = {.bytes = NULL},
                   *t = id < 0 || id >= tl_tokenizer_size(k) ? &none : &k->token[id];
    if (n != NULL)
        *n = t->n;
    return t->bytes;
}

int64_t tl_tokenizer_find(const tl_tokenizer *k, const char *content)
{
    for (size_t i = 0; k != NULL && content != NULL && i < k->n_added; i++)
        if (strcmp(k->token[k->added[i]].bytes, content) == 0)
            return k->added[i];
    return -1;
}
