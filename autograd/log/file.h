/* file.h: the inside of a log that has been read. Private to autograd/. */
#ifndef TL_LOG_FILE_H
#define TL_LOG_FILE_H

#include "autograd/log/read.h"

enum { TL_LOG_FIELDS = 11 }; /* of a definition */

/* Memory in blocks that never move, freed together. */
typedef struct tl_log_block {
    struct tl_log_block *next;
    size_t used, cap;
    _Alignas(16) char bytes[];
} tl_log_block;

typedef struct {
    tl_logged_step s;
    size_t first;  /* of its results */
    int64_t order; /* in the file */
} tl_log_record;

struct tl_log_file {
    char *text;
    tl_log_block *blocks;
    tl_log_result *result;
    size_t n_results, cap_results;
    tl_log_record *step;
    int n_steps, cap_steps;
    const tl_log_def **def; /* open addressing by key */
    size_t n_defs, cap_defs;
    uint64_t salt; /* of the addressing */
    int64_t damaged, first_damaged;
    bool no_memory;
};

/* defs.c: n bytes that stay as long as the file; NULL when out of memory, which is noted. */
void *tl_log_file_get(tl_log_file *f, size_t n);
/* What a line of definition says; false if it makes no sense. */
bool tl_log_def_read(tl_log_file *f, char **field, int n);
/* No key stands for anything any more. */
void tl_log_defs_forget(tl_log_file *f);
/* The last definition of a key; NULL: none. */
const tl_log_def *tl_log_def_find(const tl_log_file *f, uint64_t key);

#endif
