/* Checkpoints: everything comes back, and a file that is cut, lies, or is another's leaves model
 * and optimizer as they were. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <float.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <openssl/err.h>
#include <tally_extend.h>

#include "nn/layers.h"
#include "tensor/storage.h"
#include "tensor/files/file.h"
#include "tensor/files/hash.h"
#include "tensor/files/safetensors.h"
#include "tests/support/fresh_dir.h"
#include "tests/support/other_memory.h"
#include "tests/support/steps.h"

extern const struct CMUnitTest tl_tests_checkpoint[];
extern const size_t tl_tests_checkpoint_count;

/* A model of two parameters, its tape and its optimizer. */
typedef struct {
    tl_model *m;
    tl_tape *t;
    tl_opt *o;
} run;

static run begin(uint64_t seed, bool adamw)
{
    run r = {.m = tl_model_new(.seed = seed)};
    r.t = tl_tape_new(r.m);
    r.o = adamw ? tl_adamw_new(
                      r.m, .lr = 0.01, .clip = 1,
                      .schedule = {.kind = TL_COSINE, .warmup = 2, .total = 10, .min_ratio = 0.1})
                : tl_sgd_new(r.m, .lr = 0.1, .momentum = 0.9);
    tl_param(r.t, r.m, "w", TL_F32, TL_DIMS(2, 2), TL_INIT_NORMAL, 1);
    tl_param(r.t, r.m, "b", TL_F32, TL_DIMS(2), TL_INIT_NORMAL, 1);
    return r;
}

static void end(run *r) { tl_free(r->o, r->t, r->m); }

static void steps(run *r, int n)
{
    tl_error_clear(r->m); /* what a load has said is dealt with */
    for (int i = 0; i < n; i++) {
        tl_tensor x = tl_data(r->t, ((float[]){1, -2, 0.5f, 3}), TL_F32, TL_DIMS(2, 2));
        tl_tensor y = tl_add(r->t, tl_matmul(r->t, x, tl_model_find(r->m, "w")),
                             tl_model_find(r->m, "b"));
        tl_backward(r->t, tl_sum(r->t, tl_square(r->t, y), TL_ALL, false));
        assert_int_equal(tl_step(r->o, r->t), TL_OK);
        tl_tape_reset(r->t);
    }
}

/* All there is: names, kinds, values of every tensor, and the optimizer's place. */
static void state(const run *r, char hex[65])
{
    tl_sha256_ctx h;
    assert_int_equal(tl_sha256_begin(&h, NULL), TL_OK);
    for (int i = 0; i < tl_model_count(r->m); i++) {
        tl_named p = tl_model_at(r->m, i);
        tl_hash_string(&h, p.name);
        tl_sha256_feed_u64(&h, (uint64_t)p.param);
        tl_hash_array(&h, &p.array);
    }
    tl_sha256_feed_u64(&h, (uint64_t)tl_opt_steps(r->o));
    double lr = tl_opt_lr(r->o);
    tl_sha256_feed(&h, &lr, sizeof lr);
    assert_int_equal(tl_sha256_finish_hex(&h, hex, NULL), TL_OK);
}

/* Loading fails and leaves the run as it was. */
static void refused_by(run *r, tl_status want, const char *word)
{
    char before[65], after[65];
    state(r, before);
    tl_status s = tl_checkpoint_load(r->m, r->o, path, NULL, NULL, 0);
    state(r, after);
    if (s != want || strstr(tl_error(r->m), word) == NULL || strstr(tl_error(r->m), path) == NULL)
        fail_msg("%s with '%s' wanted, got %s: %s", tl_status_name(want), word, tl_status_name(s),
                 tl_error(r->m));
    if (strcmp(before, after) != 0)
        fail_msg("model or optimizer changed, although: %s", tl_error(r->m));
}

/* A fresh run and a trained one refuse the file, and then go on like their twins that never saw it.
 */
static run pair[2], twin[2];

static void pairs_begin(void)
{
    for (int i = 0; i < 2; i++) {
        pair[i] = begin(8, true);
        twin[i] = begin(8, true);
        steps(&pair[i], 3 * i);
        steps(&twin[i], 3 * i);
    }
}

static void pairs_refuse(tl_status want, const char *word)
{
    for (int i = 0; i < 2; i++)
        refused_by(&pair[i], want, word);
}

static void pairs_end(void)
{
    char want[65], got[65];
    for (int i = 0; i < 2; i++) {
        steps(&pair[i], 2);
        steps(&twin[i], 2);
        state(&twin[i], want);
        state(&pair[i], got);
        assert_string_equal(want, got);
        end(&pair[i]);
        end(&twin[i]);
    }
}

static void refused(tl_status want, const char *word)
{
    pairs_begin();
    pairs_refuse(want, word);
    pairs_end();
}

/* ---- what comes back ---- */

static void everything_comes_back(void **unused)
{
    static const char *const keys[3] = {"place", "absent", "long"};
    char values[3][TL_NOTE_MAX], text[TL_NOTE_MAX], want[65], got[65];
    (void)unused;
    memset(text, 'x', sizeof text);
    text[TL_NOTE_MAX - 1] = '\0';
    const tl_note notes[2] = {{"place", "byte 17 \"of\" \xc3\xa9\n"}, {"long", text}};
    for (int adamw = 0; adamw < 2; adamw++)
        for (int at = 0; at < 4; at++)
            for (int used = 0; used < 2;
                 used++) { /* into a fresh run, and into one that has gone elsewhere */
                run a = begin(1, adamw), b = begin(2, adamw);
                steps(&a, at);
                if (tl_checkpoint_save(a.m, a.o, path, notes, 2) != TL_OK)
                    fail_msg("%s", tl_error(a.m));
                steps(&b, used * 5);
                if (tl_checkpoint_load(b.m, b.o, path, keys, values, 3) != TL_OK)
                    fail_msg("%s", tl_error(b.m));
                assert_string_equal(values[0], notes[0].value);
                assert_string_equal(values[1], "");
                assert_string_equal(values[2], text);
                assert_int_equal(tl_opt_steps(b.o), at);
                assert_true(tl_opt_lr(a.o) == tl_opt_lr(b.o));
                steps(&a, 3);
                steps(&b, 3);
                state(&a, want);
                state(&b, got);
                if (strcmp(want, got) != 0)
                    fail_msg("%s saved at step %d, loaded into a %s run: it goes on otherwise",
                             adamw ? "adamw" : "sgd", at, used ? "used" : "fresh");
                end(&a);
                end(&b);
            }
}

static void without_an_optimizer(void **unused)
{
    run a = begin(1, true), b = begin(2, true);
    char want[65], got[65];
    (void)unused;
    steps(&a, 2);
    assert_int_equal(tl_checkpoint_save(a.m, NULL, path, NULL, 0), TL_OK);
    assert_int_equal(tl_checkpoint_load(b.m, NULL, path, NULL, NULL, 0), TL_OK);
    tl_model_sha256(a.m, want);
    tl_model_sha256(b.m, got);
    assert_string_equal(want, got);
    refused(TL_EFORMAT, "no optimizer state");
    end(&a);
    end(&b);
}

/* State that the file lacks begins at zero; a product that was made with what it was before has no
 * gradient any more. */
static void state_that_is_cleared_has_changed(void **unused)
{
    run a = begin(1, true), b = begin(2, true);
    (void)unused;
    assert_int_equal(tl_checkpoint_save(a.m, a.o, path, NULL, 0), TL_OK);
    steps(&b, 2);
    tl_tensor x = tl_data(b.t, ((float[]){1, -2, 0.5f, 3}), TL_F32, TL_DIMS(2, 2));
    tl_require_grad(b.t, x);
    tl_tensor y = tl_mul(b.t, x, tl_model_find(b.m, "adamw.m.w"));
    assert_int_equal(tl_checkpoint_load(b.m, b.o, path, NULL, NULL, 0), TL_OK);
    if (tl_backward(b.t, tl_sum(b.t, y, TL_ALL, false), .partial = true) != TL_EINPLACE)
        fail_msg("%s", tl_error(b.t));
    end(&a);
    end(&b);
}

/* A rate that was set comes back, in any digits, and is read by what is saved next. Without one the
 * file says nothing of it, and the optimizer keeps its own. */
static void a_rate_that_was_set(void **unused)
{
    static const double rates[3] = {0.1, 0x1.fffffffffffffp-20, DBL_MIN};
    static const char *const bad[5] = {"", "0", "inf", "1e-3x", "-1"};
    char value[1][TL_NOTE_MAX];
    run a = begin(1, true), b = begin(1, true);
    const double own = tl_opt_lr(b.o);
    (void)unused;
    assert_int_equal(tl_checkpoint_save(a.m, a.o, path, NULL, 0), TL_OK);
    assert_int_equal(tl_checkpoint_load(b.m, b.o, path, &(const char *){"tally.lr"}, value, 1),
                     TL_OK);
    assert_string_equal(value[0], "");
    assert_true(tl_opt_lr(b.o) == own);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(tl_opt_lr_set(a.o, rates[i]), TL_OK);
        assert_int_equal(tl_checkpoint_save(a.m, a.o, path, NULL, 0), TL_OK);
        run c = begin(1, true);
        assert_int_equal(tl_checkpoint_load(c.m, c.o, path, NULL, NULL, 0), TL_OK);
        assert_true(tl_opt_lr(c.o) == tl_opt_lr(a.o) && tl_opt_lr(c.o) != own);
        assert_int_equal(tl_checkpoint_save(c.m, c.o, path, NULL, 0), TL_OK);
        assert_int_equal(tl_checkpoint_load(b.m, b.o, path, NULL, NULL, 0), TL_OK);
        assert_true(tl_opt_lr(b.o) == tl_opt_lr(a.o));
        end(&c);
    }
    /* What was saved before a rate was set brings back the one that it was made with. */
    run d = begin(1, true);
    assert_int_equal(tl_checkpoint_save(d.m, d.o, path, NULL, 0), TL_OK);
    assert_int_equal(tl_opt_lr_set(d.o, 7), TL_OK);
    assert_int_equal(tl_checkpoint_load(d.m, d.o, path, NULL, NULL, 0), TL_OK);
    assert_true(tl_opt_lr(d.o) == own);
    end(&d);
    for (int i = 0; i < 5; i++) {
        tl_st_meta meta[3] = {{"tally.optimizer", "adamw"},
                              {"tally.steps", "0"},
                              {"tally.lr", bad[i]}};
        assert_int_equal(tl_st_write(path, NULL, 0, meta, 3, NULL), TL_OK);
        assert_int_equal(tl_checkpoint_load(b.m, b.o, path, NULL, NULL, 0), TL_EFORMAT);
        assert_non_null(strstr(tl_error(b.m), "is not a learning rate"));
        assert_true(tl_opt_lr(b.o) == tl_opt_lr(a.o));
        tl_error_clear(b.m);
    }
    end(&a);
    end(&b);
}

/* Draws go on with the seed of the file, which must be one. */
static void bad_seeds(void **unused)
{
    static const char *const bad[] = {"", "x", "-1", "+1", " 1", "1x", "18446744073709551616"};
    (void)unused;
    tl_model *m = tl_model_new(.seed = 1);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(tl_st_write(path, NULL, 0, &(tl_st_meta){"tally.seed", bad[i]}, 1, NULL),
                         TL_OK);
        assert_int_equal(tl_checkpoint_load(m, NULL, path, NULL, NULL, 0), TL_EFORMAT);
        assert_non_null(strstr(tl_error(m), "is not a seed"));
        assert_true(tl_model_seed(m) == 1);
        tl_error_clear(m);
    }
    const tl_st_meta most = {"tally.seed", "18446744073709551615"};
    assert_int_equal(tl_st_write(path, NULL, 0, &most, 1, NULL), TL_OK);
    errno = ERANGE; /* of something before */
    assert_int_equal(tl_checkpoint_load(m, NULL, path, NULL, NULL, 0), TL_OK);
    assert_true(tl_model_seed(m) == UINT64_MAX);
    tl_free(m);
    run a = begin(1, true);
    assert_int_equal(tl_checkpoint_save(a.m, a.o, path, NULL, 0), TL_OK);
    errno = ERANGE;
    assert_int_equal(tl_checkpoint_load(a.m, a.o, path, NULL, NULL, 0), TL_OK);
    end(&a);
}

static void notes_that_cannot_be_kept(void **unused)
{
    run a = begin(1, true);
    char text[TL_NOTE_MAX + 1];
    (void)unused;
    memset(text, 'x', sizeof text);
    text[TL_NOTE_MAX] = '\0';
    assert_int_equal(tl_checkpoint_save(a.m, a.o, path, &(tl_note){"kept", "whole"}, 1), TL_OK);
    const tl_note bad[4] = {{"long", text},
                            {"tally.steps", "7"},
                            {"bytes", "\xff"},
                            {"tally.lr", "7"}};
    for (int i = 0; i < 4; i++) {
        if (tl_checkpoint_save(a.m, a.o, path, &bad[i], 1) == TL_OK)
            fail_msg("note '%s' is taken, but cannot come back as it is", bad[i].key);
        assert_true(tl_failed(a.m) && tl_error(a.m)[0] != '\0');
        char value[1][TL_NOTE_MAX];
        assert_int_equal(tl_checkpoint_load(a.m, a.o, path, &(const char *){"kept"}, value, 1),
                         TL_OK); /* the old file is whole */
        assert_string_equal(value[0], "whole");
    }
    end(&a);
}

/* ---- files that are cut or lie ---- */

static char bytes[8192];
static size_t n_bytes;

static void save_trained(void)
{
    run a = begin(1, true);
    steps(&a, 2);
    assert_int_equal(tl_checkpoint_save(a.m, a.o, path, &(tl_note){"note", "text"}, 1), TL_OK);
    end(&a);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    n_bytes = fread(bytes, 1, sizeof bytes, f);
    fclose(f);
    assert_in_range(n_bytes, 200, 4000);
}

static void write_bytes(const char *p, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void a_checkpoint_cut_anywhere(void **unused)
{
    (void)unused;
    save_trained();
    pairs_begin();
    for (size_t k = 0; k < n_bytes; k++) {
        write_bytes(bytes, k);
        pairs_refuse(TL_EFORMAT, "");
    }
    remove(path);
    pairs_refuse(TL_EIO, "No such file");
    pairs_end();
}

/* Every byte of the header changed in turn: either it still says the same kind of thing, or nothing
 * changes. */
static void a_header_that_lies(void **unused)
{
    (void)unused;
    save_trained();
    size_t header = 8 + (size_t)(unsigned char)bytes[0] + 256 * (size_t)(unsigned char)bytes[1];
    run r = begin(8, true);
    steps(&r, 1);
    for (size_t k = 0; k < header; k++)
        for (int flip = 1; flip <= 16; flip *= 4) {
            char before[65], after[65];
            state(&r, before);
            bytes[k] = (char)(bytes[k] ^ flip);
            write_bytes(bytes, n_bytes);
            bytes[k] = (char)(bytes[k] ^ flip);
            if (tl_checkpoint_load(r.m, r.o, path, NULL, NULL, 0) == TL_OK) {
                steps(&r, 1); /* what was loaded can be trained on */
                end(&r);
                r = begin(8, true);
                steps(&r, 1);
                continue;
            }
            assert_true(tl_failed(r.m) && strstr(tl_error(r.m), path) != NULL);
            state(&r, after);
            if (strcmp(before, after) != 0)
                fail_msg("header byte %zu ^ %d: changed, although: %s", k, flip, tl_error(r.m));
        }
    end(&r);
}

/* A file written with any tensors and notes. */
typedef struct {
    const char *name;
    tl_dtype dtype;
    tl_shape shape;
} piece;

static void write_pieces(const piece *p, int n, const char *optimizer, const char *count,
                         const char *p1, const char *p2)
{
    static const double zeros[16];
    tl_st_entry e[8];
    tl_st_meta meta[4];
    const char *const key[4] = {"tally.optimizer", "tally.steps", "tally.beta1_power",
                                "tally.beta2_power"};
    const char *const value[4] = {optimizer, count, p1, p2};
    int n_meta = 0;
    for (int i = 0; i < n; i++)
        e[i] = (tl_st_entry){p[i].name,
                             tl_array_make(p[i].dtype, &p[i].shape, (void *)(uintptr_t)zeros)};
    for (int i = 0; i < 4; i++)
        if (value[i] != NULL)
            meta[n_meta++] = (tl_st_meta){key[i], value[i]};
    assert_int_equal(tl_st_write(path, e, n, meta, n_meta, NULL), TL_OK);
}

static const piece right[6] = {{"w", TL_F32, {2, {2, 2}}},
                               {"b", TL_F32, {1, {2}}},
                               {"adamw.m.w", TL_F32, {2, {2, 2}}},
                               {"adamw.v.w", TL_F32, {2, {2, 2}}},
                               {"adamw.m.b", TL_F32, {1, {2}}},
                               {"adamw.v.b", TL_F32, {1, {2}}}};

/* The right file with piece k replaced (or one added at 6, or left out). */
static void lie(int k, piece p, tl_status want, const char *word)
{
    piece all[7];
    memcpy(all, right, sizeof right);
    if (p.name != NULL)
        all[k] = p;
    else
        all[k] = all[5];
    write_pieces(all, p.name == NULL ? 5 : k == 6 ? 7 : 6, "adamw", "0", "0x1p+0", "0x1p+0");
    refused(want, word);
}

static void tensors_that_do_not_belong(void **unused)
{
    (void)unused;
    lie(0, (piece){NULL, TL_F32, {0}}, TL_ENAME, "no tensor 'w'");
    lie(0, (piece){"w", TL_F32, {2, {2, 1}}}, TL_ESHAPE, "'w' is [2, 1] F32 there");
    lie(0, (piece){"w", TL_F32, {1, {4}}}, TL_ESHAPE, "[4]");
    lie(0, (piece){"w", TL_F64, {2, {2, 2}}}, TL_ESHAPE, "F64");
    lie(0, (piece){"v", TL_F32, {2, {2, 2}}}, TL_ENAME, "'v'");
    lie(6, (piece){"more", TL_F32, {2, {2, 2}}}, TL_ENAME, "'more'");
    lie(6, (piece){"adamw.m.none", TL_F32, {2, {2, 2}}}, TL_ENAME, "'adamw.m.none'");
    lie(6, (piece){"adamw.x", TL_F32, {2, {2, 2}}}, TL_ENAME, "'adamw.x'");
    lie(2, (piece){"adamw.m.w", TL_F32, {2, {4, 1}}}, TL_ESHAPE,
        "'adamw.m.w' is [4, 1] F32 there; the model needs [2, 2] F32");
    lie(3, (piece){"adamw.v.w", TL_F64, {2, {2, 2}}}, TL_ESHAPE, "F64");
    lie(5, (piece){"adamw.v.b", TL_I64, {1, {2}}}, TL_ESHAPE, "I64");
}

static void notes_that_make_no_sense(void **unused)
{
    static const char *const counts[] = {
        "", "x", "-1", "1.5", "3 ", "0x3", "99999999999999999999", "9223372036854775807", "1e3"};
    run r = begin(8, true);
    (void)unused;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        write_pieces(right, 6, "adamw", counts[i], "0x1p+0", "0x1p+0");
        refused(TL_EFORMAT, counts[i]);
    }
    write_pieces(right, 6, "adamw", NULL, "0x1p+0", "0x1p+0");
    refused(TL_EFORMAT, "");
    write_pieces(right, 6, "sgd", "3", "0x1p+0", "0x1p+0");
    refused(TL_EFORMAT, "sgd, not adamw");
    write_pieces(right, 6, "", "3", "0x1p+0", "0x1p+0");
    refused(TL_EFORMAT, "adamw");
    write_pieces(right, 6, NULL, NULL, NULL, NULL);
    refused(TL_EFORMAT, "optimizer");
    write_pieces(right, 6, "adamw", "1000000000000", "0x1p+0",
                 "0x1p+0"); /* many steps take no time */
    pid_t pid = fork();
    if (pid == 0) {
        alarm(10);
        tl_status s = tl_checkpoint_load(r.m, r.o, path, NULL, NULL, 0);
        _exit((s == TL_OK) == tl_failed(r.m));
    }
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    end(&r);
}

/* A checkpoint's powers are those of its steps, whatever a file says. */
static void powers_follow_from_steps(void **unused)
{
    char want[65], got[65];
    (void)unused;
    for (int lying = 0; lying < 2; lying++) {
        run r = begin(8, true);
        double p1 = 1, p2 = 1;
        char text[2][64];
        for (int i = 0; i < 3; i++)
            p1 *= 0.9, p2 *= 0.999;
        snprintf(text[0], 64, "%a", p1);
        snprintf(text[1], 64, "%a", p2);
        write_pieces(right, 6, "adamw", "3", lying ? "0x1p-1" : text[0],
                     lying ? "0x1p+0" : text[1]);
        if (tl_checkpoint_load(r.m, r.o, path, NULL, NULL, 0) == TL_OK || !lying) {
            assert_string_equal(tl_error(r.m), "");
            steps(&r, 2);
            state(&r, lying ? got : want);
            if (lying)
                assert_string_equal(got, want);
        }
        end(&r);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_dir, remove_dir)
/* ---- out of memory: this library's, libcrypto's or jansson's ---- */

enum { LOAD_USED, LOAD_FRESH, NOTES, TL_LOAD, SAVE, TL_SAVE, HASH, NEW_PARAMETER, ACTIONS };

static tl_status act(int action, run *r)
{
    static const tl_note note = {"who", "\xc3\xa9"};
    static const char *const key[] = {"who"};
    char value[1][TL_NOTE_MAX], hex[65];
    switch (action) {
    case LOAD_USED:
    case LOAD_FRESH: return tl_checkpoint_load(r->m, r->o, path, key, value, 1);
    case NOTES: return tl_checkpoint_notes(r->m, path, key, value, 1);
    case TL_LOAD: return tl_load(r->m, path);
    case SAVE: return tl_checkpoint_save(r->m, r->o, path, &note, 1);
    case TL_SAVE: return tl_save(r->m, path);
    case HASH: return tl_model_sha256(r->m, hex);
    default:
        tl_param(r->t, r->m, "new", TL_F32, TL_DIMS(3), TL_INIT_NORMAL, 1);
        return tl_error_status(r->t);
    }
}

/* The queue holds what the program left in it and nothing else. */
static void queue_is_as_it_was(unsigned long left)
{
    assert_int_equal(ERR_get_error(), left);
    assert_int_equal(left != 0 ? ERR_get_error() : 0, 0);
}

/* The n-th request fails, of tally's own (whose 0) or of the libraries' (1: once, 2: and all after
 * it); true if it was not needed. */
static bool act_without_memory(int action, int whose, int64_t n, const char *content, size_t size)
{
    char before[65], after[65], *now;
    size_t now_size;
    run r = begin(3, true);
    if (action != LOAD_FRESH && action != TL_LOAD)
        steps(&r, 1);
    write_bytes(content, size);
    state(&r, before);
    ERR_clear_error(); /* gives back what it holds for errors long read */
    int64_t blocks = other_memory_blocks();
    if (n % 2 == 0)
        ERR_put_error(ERR_LIB_USER, 0, 42, __FILE__, __LINE__);
    unsigned long left = ERR_peek_last_error();
    if (whose == 0)
        tl_alloc_fail_after(n);
    else
        other_memory_fail(n, whose == 2);
    tl_status s = act(action, &r);
    tl_alloc_fail_after(0);
    other_memory_fail(0, false);
    queue_is_as_it_was(left);
    ERR_clear_error();
    if (s != TL_OK && s != TL_ENOMEM)
        fail_msg("action %d, memory %d, request %d: %s: %s", action, whose, (int)n,
                 tl_status_name(s), tl_error(action == NEW_PARAMETER ? (void *)r.t : (void *)r.m));
    if (s != TL_OK) {
        state(&r, after);
        assert_string_equal(before, after);
        assert_int_equal(tl_file_read(path, 1 << 20, &now, &now_size, NULL), TL_OK);
        assert_int_equal(now_size, size);
        assert_memory_equal(now, content, size);
        tl_free_raw(now);
        assert_int_equal(temp_dir_count(&dir), 1);
        if (other_memory_blocks() > blocks)
            fail_msg("action %d, memory %d, request %d: %d blocks more than before", action, whose,
                     (int)n, (int)(other_memory_blocks() - blocks));
    }
    end(&r);
    return s == TL_OK;
}

static void want_of_memory_keeps_its_name(void **unused)
{
    run r = begin(2, true), plain = begin(2, true);
    char *content[2];
    size_t size[2];
    (void)unused;
    steps(&r, 3);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(i == 0 ? act(SAVE, &r) : act(TL_SAVE, &plain), TL_OK);
        assert_int_equal(tl_file_read(path, 1 << 20, &content[i], &size[i], NULL), TL_OK);
    }
    int failed[3] = {0};
    assert_true(other_memory_hooked());
    for (int action = 0; action < ACTIONS; action++)
        for (int whose = 0; whose < 3; whose++) {
            int through = 0, k = action == TL_LOAD; /* the file */
            int64_t n = 1;
            act_without_memory(action, whose, 1 << 20, content[k], size[k]); /* caches are filled */
            for (; through < 10 && n < 2000; n++) /* some failures are got over: no end yet */
                through = act_without_memory(action, whose, n, content[k], size[k]) ? through + 1
                                                                                    : 0;
            failed[whose] += (int)n - 11;
            assert_true(n < 2000);
        }
    print_message("%d, %d and %d requests failed\n", failed[0], failed[1], failed[2]);
    assert_true(failed[0] > 50 && failed[1] > 50 && failed[2] > 50);
    for (int i = 0; i < 2; i++)
        tl_free_raw(content[i]);
    end(&r), end(&plain);
}

/* n parameters, in layers or not, each with its state. */
static run begin_wide(int n, int parts)
{
    run r = {.m = tl_model_new(.seed = 1)};
    char name[32];
    r.t = tl_tape_new(r.m);
    r.o = tl_adamw_new(r.m, .lr = 0.01, .parts = parts);
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, i % 2 ? "p%d.w" : "p%d", i);
        tl_param(r.t, r.m, name, TL_F32, TL_DIMS(1), TL_INIT_ONES, 0);
        for (int k = 0; parts == 0 && k < 2; k++) {
            snprintf(name, sizeof name, i % 2 ? "adamw.%c.p%d.w" : "adamw.%c.p%d", "mv"[k], i);
            tl_buffer(r.t, r.m, name, TL_F32, TL_DIMS(1));
            assert_ptr_equal(tl_buffer_take(r.m, name, r.o), r.o);
        }
    }
    assert_string_equal(tl_error(r.t), "");
    return r;
}

/* How often models are asked for something while n parameters go to files and come back. */
static int64_t steps_for_files(int n)
{
    run all = begin_wide(n, 0), half = begin_wide(n, 2);
    const int64_t began = steps_taken();
    assert_int_equal(tl_save(all.m, path), TL_OK);
    assert_int_equal(tl_load(half.m, path), TL_OK);
    assert_int_equal(tl_checkpoint_save(all.m, all.o, path, NULL, 0), TL_OK);
    assert_int_equal(tl_checkpoint_load(half.m, half.o, path, NULL, NULL, 0), TL_OK);
    const int64_t took = steps_taken() - began;
    assert_int_equal(tl_model_count(half.m), 2 * n);
    end(&all), end(&half);
    return took;
}

/* Four times the model, four times the work, or a little more to find names; its square would be
 * sixteen times. */
static void work_grows_with_the_model(void **unused)
{
    (void)unused;
    const int64_t few = steps_for_files(128), many = steps_for_files(512);
    print_message("%lld, %lld steps\n", (long long)few, (long long)many);
    assert_in_range(many, few, 6 * few);
}

/* A file from before a buffer was made: what a later step has left in it would stay. */
static void buffers_that_a_file_lacks(void **unused)
{
    (void)unused;
    run r = begin(1, true);
    assert_int_equal(tl_checkpoint_save(r.m, r.o, path, NULL, 0), TL_OK);
    tl_tensor mean = tl_buffer(r.t, r.m, "mean", TL_F32, TL_DIMS(2));
    assert_int_equal(tl_checkpoint_load(r.m, r.o, path, NULL, NULL, 0), TL_OK); /* zeros, as made */
    assert_int_equal(tl_write(r.m, mean, (float[]){0, 1}, 8), TL_OK);
    refused_by(&r, TL_ENAME, "has no tensor 'mean'");
    end(&r);
}

/* A tensor of the model is no gradient, however it is called. */
static void a_buffer_with_a_name_of_gradients(void **unused)
{
    static const char name[] = "grad.0.sum.l.weight";
    float got[2];
    (void)unused;
    run r = begin(1, true);
    tl_tensor b = tl_buffer(r.t, r.m, name, TL_F32, TL_DIMS(2));
    assert_int_equal(tl_write(r.m, b, (float[]){3, 4}, 8), TL_OK);
    assert_int_equal(tl_checkpoint_save(r.m, r.o, path, NULL, 0), TL_OK);
    assert_int_equal(tl_write(r.m, b, (float[]){0, 0}, 8), TL_OK);
    assert_int_equal(tl_checkpoint_load(r.m, r.o, path, NULL, NULL, 0), TL_OK);
    assert_int_equal(tl_keep(r.t, tl_model_find(r.m, name), got, sizeof got), TL_OK);
    assert_true(got[0] == 3 && got[1] == 4);
    end(&r);
}

/* Tables of rotary embeddings follow from their names: a file and a model may each have more of
 * them than the other. */
static void rotary_tables_come_and_go(void **unused)
{
    static const char table[] = "rope.4x2.10000half.cos";
    float got[8], ones[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    (void)unused;
    run with = begin(1, true), without = begin(1, true);
    const int n = tl_model_count(without.m);
    const tl_array a = {.dtype = TL_F32, .ndim = 2, .dim = {4, 2}};
    assert_true(tl_is_rotary_table(table, &a));
    tl_tensor b = tl_buffer(with.t, with.m, table, TL_F32, TL_DIMS(4, 2));
    assert_int_equal(tl_write(with.m, b, ones, sizeof ones), TL_OK);
    assert_int_equal(tl_checkpoint_save(without.m, without.o, path, NULL, 0), TL_OK);
    assert_int_equal(tl_checkpoint_load(with.m, with.o, path, NULL, NULL, 0), TL_OK);
    assert_int_equal(tl_keep(with.t, tl_model_find(with.m, table), got, sizeof got), TL_OK);
    assert_memory_equal(got, ones, sizeof got);
    assert_int_equal(tl_checkpoint_save(with.m, with.o, path, NULL, 0), TL_OK);
    assert_int_equal(tl_checkpoint_load(without.m, without.o, path, NULL, NULL, 0), TL_OK);
    assert_int_equal(tl_model_count(without.m), n);
    end(&with), end(&without);
}

static tl_status steps_with(run *r, const char *name)
{
    tl_param(r->t, r->m, name, TL_F32, TL_DIMS(2), TL_INIT_ONES, 0);
    tl_tensor y = TL_NONE;
    for (int i = 0; i < tl_model_count(r->m); i++) {
        tl_tensor sum = tl_sum(r->t, tl_model_at(r->m, i).tensor, TL_ALL, false);
        y = i == 0 ? sum : tl_add(r->t, y, sum);
    }
    assert_int_equal(tl_backward(r->t, y, .ragged = true), TL_OK);
    return tl_step(r->o, r->t);
}

/* Parts are cut by the parameters that there are at the first step, or when a file is loaded. */
static void parts_that_would_be_others(void **unused)
{
    enum { NEW, STEPPED, LOADED, PARTS_WAYS };
    (void)unused;
    for (int how = 0; how < PARTS_WAYS; how++) {
        run r = {.m = tl_model_new(.seed = 1)};
        r.t = tl_tape_new(r.m);
        r.o = tl_sgd_new(r.m, .lr = 0.5, .parts = 2);
        tl_param(r.t, r.m, "a", TL_F32, TL_DIMS(2), TL_INIT_ONES, 0);
        if (how == STEPPED)
            assert_int_equal(steps_with(&r, "b"), TL_OK);
        if (how == LOADED) {
            tl_opt *whole = tl_sgd_new(r.m, .lr = 0.5);
            assert_int_equal(tl_checkpoint_save(r.m, whole, path, NULL, 0), TL_OK);
            tl_free(whole);
            assert_int_equal(tl_checkpoint_load(r.m, r.o, path, NULL, NULL, 0), TL_OK);
        }
        assert_int_equal(steps_with(&r, "c"), how == NEW ? TL_OK : TL_EUSAGE);
        if (how != NEW)
            assert_non_null(strstr(tl_error(r.t), "parameters have been added to a model whose "
                                                  "optimizer updates part 0 of 2"));
        tl_error_clear(r.t);
        end(&r);
    }
}

/* tl_load, which reads what tl_save writes, says what else it has been given. */
static void a_checkpoint_is_called_one(void **unused)
{
    (void)unused;
    run r = begin(1, true);
    steps(&r, 1);
    assert_int_equal(tl_checkpoint_save(r.m, r.o, path, NULL, 0), TL_OK);
    assert_int_equal(tl_load(r.m, path), TL_ENAME);
    if (strncmp(tl_error(r.m), "tl_load: ", 9) != 0 ||
        strstr(tl_error(r.m), "it is a checkpoint, which tl_checkpoint_load reads") == NULL)
        fail_msg("%s", tl_error(r.m));
    tl_error_clear(r.m);
    assert_int_equal(tl_checkpoint_load(r.m, r.o, path, NULL, NULL, 0), TL_OK);
    end(&r);
}

/* Every message says which function failed, and at which path. */
static void messages_name_the_function(void **unused)
{
    static const char none[] = "/no/such/folder/file";
    (void)unused;
    run r = begin(1, true);
    const char *const keys[] = {"key"};
    char values[1][TL_NOTE_MAX], want[128];
    for (int i = 0; i < 6; i++) {
        static const char *const who[] = {"tl_checkpoint_save",      "tl_checkpoint_load",
                                          "tl_checkpoint_notes",     "tl_checkpoint_writable",
                                          "tl_checkpoint_save_tape", "tl_checkpoint_load_tape"};
        const tl_status s = i == 0   ? tl_checkpoint_save(r.m, r.o, none, NULL, 0)
                            : i == 1 ? tl_checkpoint_load(r.m, r.o, none, keys, values, 1)
                            : i == 2 ? tl_checkpoint_notes(r.m, none, keys, values, 1)
                            : i == 3 ? tl_checkpoint_writable(r.m, none)
                            : i == 4 ? tl_checkpoint_save_tape(r.t, r.o, none, NULL, 0)
                                     : tl_checkpoint_load_tape(r.t, r.o, none, keys, values, 1);
        snprintf(want, sizeof want, "%s: ", who[i]);
        if (s != TL_EIO || strncmp(tl_error(r.m), want, strlen(want)) != 0 ||
            strstr(tl_error(r.m), "/no/such/folder") == NULL)
            fail_msg("%s: %s", who[i], tl_error(r.m));
        tl_error_clear(r.m);
    }
    assert_int_equal(tl_load(r.m, "tl_none.safetensors"), TL_EIO); /* a path like a function */
    assert_memory_equal(tl_error(r.m), "tl_load: tl_none.safetensors: ", 30);
    end(&r);
}

/* Parameters without elements are parameters. */
static void parameters_without_elements(void **unused)
{
    (void)unused;
    run r = {.m = tl_model_new(.seed = 1)};
    r.t = tl_tape_new(r.m);
    tl_param(r.t, r.m, "w", TL_F32, TL_DIMS(0, 3), TL_INIT_ONES, 0);
    assert_int_equal(tl_checkpoint_save(r.m, NULL, path, NULL, 0), TL_OK);
    assert_int_equal(tl_checkpoint_load(r.m, NULL, path, NULL, NULL, 0), TL_OK);
    end(&r);
}

const struct CMUnitTest tl_tests_checkpoint[] = {
    cmocka_unit_test_setup_teardown(want_of_memory_keeps_its_name, make_dir, remove_dir),
    TEST(everything_comes_back),
    TEST(without_an_optimizer),
    TEST(state_that_is_cleared_has_changed),
    TEST(a_rate_that_was_set),
    TEST(bad_seeds),
    TEST(notes_that_cannot_be_kept),
    TEST(a_checkpoint_cut_anywhere),
    TEST(a_header_that_lies),
    TEST(tensors_that_do_not_belong),
    TEST(notes_that_make_no_sense),
    TEST(powers_follow_from_steps),
    TEST(work_grows_with_the_model),
    TEST(buffers_that_a_file_lacks),
    TEST(parts_that_would_be_others),
    TEST(a_buffer_with_a_name_of_gradients),
    TEST(rotary_tables_come_and_go),
    TEST(parameters_without_elements),
    TEST(a_checkpoint_is_called_one),
    TEST(messages_name_the_function),
};
const size_t tl_tests_checkpoint_count = sizeof tl_tests_checkpoint / sizeof tl_tests_checkpoint[0];
