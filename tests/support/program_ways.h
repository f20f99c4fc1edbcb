/* program_ways.h: the ways in which a program of programs.h may be run, and all that comes of it:
 * every result, gradient, accumulator, weight and state of the optimizer, as facts in one order, so
 * that two runs can be compared. */
#ifndef TESTS_SUPPORT_PROGRAM_WAYS_H
#define TESTS_SUPPORT_PROGRAM_WAYS_H

#include "tests/support/programs.h"

/* All 0: called, without segments, as threads and vector level are set. */
typedef struct {
    unsigned compiled; /* bit update * PROGRAM_PARTS + part: run and not called */
    enum {
        UPDATE_CALLED,
        UPDATE_COMPILED,
        UPDATE_IN_PART
    } update; /* tl_step by itself, or the
                 last part's */
    tl_graph_options options;
    bool segments, verify;
    uint64_t cuts;
    int threads;       /* 0: as they are */
    const char *level; /* NULL: as it is */
} program_way;

typedef struct {
    char what[48], hash[17]; /* "": this way cannot tell */
} program_fact;

typedef struct {
    program_fact *fact;
    int n, room;
    char error[512]; /* where the run ended early */
    bool finite;     /* the last loss */
    int last[PROGRAM_PARTS][PROGRAM_VALUES][PROGRAM_WIDE];
    int cuts, replaced, reordered, fused; /* segments; nodes of graphs */
} program_result;

program_way program_way_random(const program *p, uint64_t seed);
/* Called, once for all: it learns who reads what. ran: see program_watch; log and ran may be NULL.
 */
void program_call(const program *p, FILE *log, bool *ran, program_result *r);
void program_run(const program *p, const program_way *way, const program_result *called,
                 program_result *r);
/* The first fact in which they differ; -1: none. */
int program_differs(const program_result *a, const program_result *b);
void program_result_free(program_result *r);
void program_way_print(FILE *f, const program *p, const program_way *w);

#endif
