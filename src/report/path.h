/* How long the path of a run's folder may be, so that every file in it has one. */
#ifndef KG_REPORT_PATH_H
#define KG_REPORT_PATH_H

#include "base/file.h"

enum { KG_RUN_DIR_MAX = 3000 };

#endif
