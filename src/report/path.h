/* A file inside a run directory, by value. run.dir is at most KG_RUN_DIR_MAX bytes
 * (checked when a run is opened), names below it are short, so nothing is ever cut. */
#ifndef KG_REPORT_PATH_H
#define KG_REPORT_PATH_H

#include <stdio.h>

enum { KG_RUN_DIR_MAX = 3000 };

struct kg_path {
    char text[4096];
};

static inline struct kg_path kg_path_in(const char *dir, const char *name)
{
    struct kg_path p;

    snprintf(p.text, sizeof p.text, "%.3800s/%.280s", dir, name);
    return p;
}

#endif
