/* api_calls.h: a good call of every public function (tests/api_rows.t.h), on objects and tensors
 * made for it, any argument of which can be spoiled. */
#ifndef TESTS_SUPPORT_API_CALLS_H
#define TESTS_SUPPORT_API_CALLS_H

#include <tally_data.h>
#include <tally_bind.h>
#include <tally_extend.h>
#include <tally_models.h>

#include "tensor/files/file.h"
#include "tests/temp_dir.h"

/* clang-format off */
enum {
    F, FT, ROW3, CUBE, IMAGE, SQUARE, UNITS, Q, TABLE, LONGTABLE, IDS, ENDS, IDS2, MASK, ONE,
    LOSS, P, V, V2, RATE, HALF, WIDE, TENSORS
};
enum { STALE, FOREIGN, FOREIGN_MODEL, DEAD, FORGED, CONSUMED, WRONG, /* these can only be wrong */
       FREED = WRONG, DROPPED, SCALAR, EIGHT, EMPTY, LONG, BOOLS, WIDER, PARAMETER, VARIANTS };
/* clang-format on */
/* What one call is made of, and which of its arguments is spoiled. */
typedef struct {
    tl_model *m, *m2;
    tl_tape *t, *t2, *clear;
    tl_opt *opt;
    tl_graph *graph, *orphan;
    tl_compiled *compiled, *orphan_compiled;
    struct {
        tl_model *m;
        tl_tape *t;
        tl_opt *opt;
        tl_graph *graph;
        tl_compiled *compiled;
    } freed;
    tl_st_file *file;
    tl_arrays *read;
    tl_loader loader;
    tl_order *order, *whole;
    FILE *stream;
    tl_tensor x[TENSORS], bad_x[VARIANTS];
    tl_tensor result;
    uint32_t nodes;
    int64_t A, B, H, D; /* sizes of tensors */
    const int64_t *ids; /* six numbers to be ids, ranges and targets; NULL: small ones */
    unsigned needs;     /* of the objects that are made on demand */

    uint64_t *random;   /* not NULL: arguments are spoiled at random, */
    tl_tensor pool[64]; /* and tensors are results of earlier calls */
    unsigned pooled;

    int place;        /* arguments seen so far in this call */
    int bad, variant; /* which one is spoiled, -1: none; and how */
    int variants;     /* how many ways there are */
    bool must;        /* that can only be wrong */
    bool mute;        /* what would carry the message is missing */
    bool failing;     /* what came back says failure */
    char what[96], said[TL_MESSAGE_MAX];

    tl_err err;
    tl_tensor out[8], in[8][8];
    int n_in;
    tl_shape shape[4], shapes[4];
    int n_shapes;
    int64_t sizes[2];
    float floats[256];
    double doubles[64];
    char text[1024], hex[65], values[1][TL_NOTE_MAX];
    tl_array array[1], room;
    tl_st_file *files[1];
    tl_arrays *numbers[1];
    tl_tokenizer *tokenizers[1], *tokenizer;
    tl_order *orders[1];
    tl_reader reader[1];
    tl_writer *writer[1];
    char *bytes[1];
    size_t sizes_read[1];
    int axis[1];
    int ints[1];
    tl_kernel_row row[1];
    void *nulls[2];
    tl_gradcheck_report report[1];
    tl_llama_config llama;
    tl_gpt2_config gpt2;
    tl_decoder_config decoder, loaded[1];
    tl_schedule schedule;
    tl_rotary_scaling scaling;
    tl_note note;
    const char *key;
    tl_st_entry entry;
    tl_st_meta meta;
    tl_pattern_arg arg;
    tl_kernel kernel;
    temp_dir dir;
    char fresh[1024], saved[1024], checkpoint[1024], log[1024];
} api;

/* A number below n, by splitmix64. */
uint64_t api_below(uint64_t *state, uint64_t n);

/* Makes all that a call needs, of the sizes A, B, H and D (0: 2, 3, 2, 4), and frees it again. */
void api_set_up(api *a);
void api_tear_down(api *a);
/* Its tensors on the tape and in the model, and the loss, made anew. */
void api_tensors(api *a);
void api_loss(api *a);
/* Gives back what the last call has handed out. */
void api_take_back(api *a);
/* Paths in a->dir; the files that are read must be there (api_files). */
void api_paths(api *a);
bool api_files(const temp_dir *dir);

/* Of the kinds, what a bad argument does: SAYS a message (SAYS_VOID: and returns nothing), wants a
 * process of its own (ALONE), may leave a parameter behind (LAYER), nothing at all (QUIET); or the
 * row says why it is NOT called. */
typedef enum { SAYS, ALONE, SAYS_VOID, LAYER, QUIET, NOT } row_kind;
typedef struct {
    const char *name;
    row_kind kind;
    void (*call)(api *a);
} api_row;
extern const api_row api_rows[];
extern const int api_row_count;
int api_find(const char *name);

/* What is too much is refused, not killed for: 4 GB more than what this process has now. */
void api_limit_memory(void);

#endif
