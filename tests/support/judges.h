/* judges.h: what must hold of each reader of files, whatever the bytes: they are refused with a
 * message or read as what they say; nothing else happens - no crash, no change of what was there,
 * no work or memory out of proportion. A breach fails the test that runs, or ends the process. Each
 * judge returns whether the file was good. */
#ifndef TL_JUDGES_H
#define TL_JUDGES_H

#include <stdbool.h>
#include <stddef.h>

#include "tensor/array.h"

enum { JUDGED_MOST = 1 << 16 }; /* bytes of a header, to a judge of safetensors */
typedef enum { JUDGED_FOLDER, JUDGED_LLMC, JUDGED_TOKENS } judged_kind;
extern char judged[64]; /* how what is judged is made again: stands in the message of a breach */

/* Against a second reader made of jansson's tree. */
bool judge_safetensors(const void *b, size_t n);
/* .npy, .npz, IDX, CSV. */
bool judge_arrays(const void *b, size_t n, tl_dtype as);
/* Into the model and the optimizer that tests/corpus was saved from; how: 0 to 3. */
bool judge_checkpoint(const char *path, int how);
/* A model or tokens of other programs; bytes: of all files. */
bool judge_model(const char *path, judged_kind kind, size_t bytes);
/* A folder of that family of tests/corpus, written to `folder`, whose file `name` has these bytes.
 */
bool judge_folder(const char *folder, const char *family, const char *name, const void *b,
                  size_t n);
/* A good tokenizer takes the text apart, too. */
bool judge_tokenizer(const void *b, size_t n, const char *text, size_t length);
/* Two logs, as tally-diff reads them; true: there was something to report. */
bool judge_logs(const char *a, const char *b, bool agreed, size_t bytes);

/* What lies deeper is met: the digest of a safetensors file is made right, if it has one; the CRC
 * of each member of an .npz, and of a deflated one its size. */
void judged_seal(void *bytes, size_t n);
void judged_crc(void *bytes, size_t n);

#endif
