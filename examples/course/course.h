/* course.h: how a lesson ends, and how it opens a picture. A lesson needs nothing else from here.
 *
 * Lines that begin with "here:" depend on the machine; the golden files leave them out. */
#ifndef TL_COURSE_H
#define TL_COURSE_H

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static FILE *course_picture;
static bool course_undrawn; /* a picture could not be written */

static inline bool course_lost(void)
{
    const bool lost = fflush(stdout) != 0 || ferror(stdout);
    if (lost)
        fprintf(stderr, "cannot write the output: %s\n", strerror(errno));
    return lost;
}

/* Ends the picture, and prints the point and whether it held, which is also the exit status: 0 if
 * so, and if what was to be drawn and printed is written. */
static inline int course_end(bool held, const char *point)
{
    if (course_picture != NULL) {
        bool bad = fputs("</svg>\n", course_picture) == EOF || ferror(course_picture);
        course_undrawn = fclose(course_picture) != 0 || bad;
    }
    printf("\n%s %s\n", held ? "The point:" : "SOMETHING DID NOT HOLD. The point would be:", point);
    if (course_undrawn)
        printf("But the picture could not be written.\n");
    return course_lost() || !held || course_undrawn;
}

/* Instead, where this machine lacks what the point needs. Everything before must have held. */
static inline int course_not_shown(bool held, const char *why)
{
    printf("\nhere: not shown: %s\n", why);
    return course_lost() || !held;
}

/* What a line or path of a picture takes as attributes: ink (' ') or one of four colours, 'a' to
 * 'd', that can be read on light and dark paper. The colour is no style: not every viewer reads
 * those. */
static inline const char *course_line(char colour)
{
    static const char *const pen[] = {"fill='none' stroke='#222'",
                                      "fill='none' stroke='#0b62b0' class='a'",
                                      "fill='none' stroke='#b3400a' class='b'",
                                      "fill='none' stroke='#2b7a2b' class='c'",
                                      "fill='none' stroke='#888' class='d'"};
    return pen[colour >= 'a' && colour <= 'd' ? colour - 'a' + 1 : 0];
}

/* The same for text, which is black without it, and for what is filled. */
static inline const char *course_fill(char colour)
{
    static const char *const ink[] = {"fill='#222'", "fill='#0b62b0' class='a'",
                                      "fill='#b3400a' class='b'", "fill='#2b7a2b' class='c'",
                                      "fill='#888' class='d'"};
    return ink[colour >= 'a' && colour <= 'd' ? colour - 'a' + 1 : 0];
}

/* Opens a picture: at the path that the program was given, else beside the program. A viewer that
 * reads styles shows it on dark paper where the reader prefers that. NULL, and a line on stderr, if
 * it cannot be written. It is course_end that closes it. */
static inline FILE *course_svg(int argc, char **argv, int width, int height)
{
    char path[4096];
    if (argc > 2 || (argc == 2 && argv[1][0] == '-')) {
        fprintf(stderr, "usage: %s [FILE]: FILE is where the picture goes, else %s.svg\n", argv[0],
                argv[0]);
        exit(2);
    }
    snprintf(path, sizeof path, argc > 1 ? "%s" : "%s.svg", argv[argc > 1]);
    FILE *f = course_picture = fopen(path, "w");
    if (f == NULL) {
        course_undrawn = true;
        fprintf(stderr, "cannot write %s\n", path);
        return NULL;
    }
    printf("here: a picture is in %s\n", path);
    fprintf(f,
            "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %d %d' width='%d' height='%d'"
            " font-family='sans-serif' font-size='13'>\n<style>\n"
            "@media (prefers-color-scheme: dark) {\n"
            "  svg { color: #ddd } .a { color: #6db3f2 } .b { color: #ff9a5c }\n"
            "  .c { color: #7ccf7c } .d { color: #888 } rect { fill: #16181c }\n"
            "  text, circle { fill: currentColor } path, line { stroke: currentColor } }\n"
            "</style>\n<rect width='%d' height='%d' fill='#fff'/>\n",
            width, height, width, height, width, height);
    return f;
}

#endif
