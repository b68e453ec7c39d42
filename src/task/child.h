/* Runs a program of the user (sh -c): writes its input, reads its output and ends it. A
 * grader gets its input batch by batch; an environment's output is read while it plays.
 */
#ifndef KG_TASK_CHILD_H
#define KG_TASK_CHILD_H

#include "base/status.h"
#include "base/str.h"

#include <stdbool.h>

struct kg_task_command {
    const char *command; /* run by sh -c in a process group of its own */
    /* names "A,B" of environment variables besides the usual ones; NULL: none */
    const char *env;
    int timeout_ms; /* limit for a batch; kg_task_child_ask fails after it */
};
/* errors: EINVAL (a named variable is not set) */
kg_status kg_task_env_check(const char *names, struct kg_err *err) KG_MUST_CHECK;

struct kg_task_child;
/* errors: EIO, ENOMEM */
kg_status kg_task_child_start(struct kg_task_child **child,
                              const struct kg_task_command *command,
                              struct kg_err *err) KG_MUST_CHECK;
struct kg_task_talk {
    const char *input; /* for its standard input: a batch */
    size_t input_n;
    size_t lines;      /* number of output lines expected */
    size_t max_output; /* maximum bytes of output */
    bool end;          /* close the child's input after this; the child must end */
    /* close the child's input once it has read all and no pipe has moved data for
     * min(2 s, timeout_ms / 2) */
    bool patient;
    size_t *sent; /* for kg_task_child_hear: bytes of the input written; NULL: no input */
};
/* Writes the input and appends the output until there are enough lines, or the child has
 * ended.
 * errors: ETIMEOUT (with the last line of its stderr), EFORMAT (more than max_output),
 * EIO, EINTERRUPTED (a stop was requested and the child was slow) */
kg_status kg_task_child_ask(struct kg_str *out, struct kg_task_child *child,
                            const struct kg_task_talk *talk,
                            struct kg_err *err) KG_MUST_CHECK;
/* Appends output as soon as some comes, waits at most wait_ms; writes input from *sent on
 * while the child accepts it.   errors: EFORMAT (more than max_output), EIO, ENOMEM */
kg_status kg_task_child_hear(struct kg_str *out, struct kg_task_child *child,
                             const struct kg_task_talk *talk, int wait_ms,
                             struct kg_err *err) KG_MUST_CHECK;
bool kg_task_child_ended(const struct kg_task_child *child);
bool kg_task_child_listens(const struct kg_task_child *child); /* its input is open */
bool kg_task_child_is_done(const struct kg_task_child *child); /* kedge ended its input */
/* Kills the process and its descendants, and frees child; NULL is allowed. */
void kg_task_child_kill(struct kg_task_child *child);
/* Frees a child that has ended.   errors: EIO (its exit status is not 0: with the
 * last line of its stderr) */
kg_status kg_task_child_end(struct kg_task_child *child, struct kg_err *err);

#endif
