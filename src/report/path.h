/* The maximum length of a run folder's path, which leaves room for the files in it. */
#ifndef KG_REPORT_PATH_H
#define KG_REPORT_PATH_H

#include "base/file.h"

enum { KG_RUN_DIR_MAX = 3000 };

#endif
