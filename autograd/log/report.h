/* report.h: where two logs part, in words, for build/tally-diff and programs like it. */
#ifndef TL_LOG_REPORT_H
#define TL_LOG_REPORT_H

#include <stdio.h>

#include "autograd/log/read.h"

/* Two logs, and how far they have been compared. */
typedef struct {
    const char *path[2]; /* values that were kept are looked for beside them */
    tl_log_file *file[2];
    int64_t agreed, agreed_whole; /* the last step that agreed, and with all its results; 0: none */
} tl_log_pair;

/* Prints how the two steps of c differ: the first op, its inputs, the path that led there, how far
 * it spread, the values if both logs kept them; or that the programs are not the same. Nothing if
 * they do not differ. */
void tl_log_report(FILE *f, const tl_log_pair *p, const tl_log_comparison *c);

/* Prints text that files may have had a say in: control characters, and what is no UTF-8, as %XX.
 */
void tl_log_print(FILE *f, const char *text);

/* Parts of that (path.c). A line for a result; remark: how it stands to the other log. */
void tl_log_show_result(FILE *f, const tl_logged_step *s, const tl_log_def *d, const char *remark);
/* The inputs of r. Whether they are the same in both; all_known: each could be compared. */
bool tl_log_show_inputs(FILE *f, const tl_log_comparison *c, const tl_log_result *r,
                        bool *all_known);
/* What was computed one from the other up to r. */
void tl_log_show_path(FILE *f, const tl_log_comparison *c, const tl_log_result *r);

#endif
