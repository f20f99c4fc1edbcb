/* file_faults.h: calls of the system that fail, in the whole runner (tests/test_file.c). */
#ifndef TL_FILE_FAULTS_H
#define TL_FILE_FAULTS_H

/* The n-th call from now fails with EIO: 'r' of rename, 'R' with all that follow, 'T' with the next
 * two, 'd' of fsync for a directory. n 0: none. */
void file_fail_after(char what, int n);

#endif
