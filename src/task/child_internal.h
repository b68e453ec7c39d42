/* Shared by child.c and guard.c. */
#ifndef KG_TASK_CHILD_INTERNAL_H
#define KG_TASK_CHILD_INTERNAL_H

#include "base/status.h"

#include <sys/types.h>

/* The environment variable that marks processes started by a grader. */
#define KG_TASK_MARK "KEDGE_GRADER="

struct kg_task_guard {
    pid_t pid; /* 0: none */
    int fd;    /* owned: the guard kills when fd is closed, or when kedge ends */
    char mark[80];
};
/* errors: EIO */
kg_status kg_task_guard_start(struct kg_task_guard *g, struct kg_err *err) KG_MUST_CHECK;
/* Tells the guard which process group to kill. */
void kg_task_guard_tell(struct kg_task_guard *g, pid_t group);
/* Kills the guarded processes and waits until they are gone. */
void kg_task_guard_end(struct kg_task_guard *g);

/* write() without SIGPIPE when the reader is gone. */
ssize_t kg_task_write_quietly(int fd, const char *bytes, size_t n);

#endif
