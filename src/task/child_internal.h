/* What child.c and guard.c share. */
#ifndef KG_TASK_CHILD_INTERNAL_H
#define KG_TASK_CHILD_INTERNAL_H

#include "base/status.h"

#include <sys/types.h>

/* The variable that marks what a grader started. */
#define KG_TASK_MARK "KEDGE_GRADER="

struct kg_task_guard {
    pid_t pid; /* 0: none */
    int fd;    /* owned: closed, or kedge gone: it kills */
    char mark[80];
};
/* errors: EIO */
kg_status kg_task_guard_start(struct kg_task_guard *g, struct kg_err *err) KG_MUST_CHECK;
/* Which process group to end. */
void kg_task_guard_tell(struct kg_task_guard *g, pid_t group);
/* End what it guards, and wait until that is done. */
void kg_task_guard_end(struct kg_task_guard *g);

/* write() without the SIGPIPE of a reader that is gone. */
ssize_t kg_task_write_quietly(int fd, const char *bytes, size_t n);

#endif
