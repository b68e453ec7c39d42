/* What the files of task/ share: the functions behind the rows, draws of generators,
 * exact numbers in text. */
#ifndef KG_TASK_TASK_INTERNAL_H
#define KG_TASK_TASK_INTERNAL_H

#include "base/rng.h"
#include "task/task.h"

/* kg_dataset_read with the columns of opts. */
kg_status kg_task_read(struct kg_dataset *d, const char *path,
                       const struct kg_task_opts *opts, bool need_answer,
                       struct kg_err *err) KG_MUST_CHECK;

/* Its two steps, between which a task may mark records as excluded: all records, then
 * those that repeat a problem counted or dropped. Of equal ones the first that is not
 * excluded is kept, else the first. */
kg_status kg_task_read_all(struct kg_dataset *d, const char *path,
                           const struct kg_task_opts *opts, bool need_answer,
                           struct kg_err *err) KG_MUST_CHECK;
kg_status kg_task_settle_repeated(struct kg_dataset *d, bool unique,
                                  struct kg_err *err) KG_MUST_CHECK;

/* Whether a record asks a question: text, or a conversation of one message of text. */
bool kg_task_has_question(const struct kg_record *r);
/* What it asks becomes text, which is taken (also on failure); a conversation says it in
 * its message. */
kg_status kg_task_set_question(struct kg_record *r, char *text,
                               struct kg_err *err) KG_MUST_CHECK;

/* What a record's answer holds behind a marker becomes its ground truth; the whole answer
 * its worked solution, unless it has one. */
kg_status kg_task_split_answer(struct kg_record *r, const char *truth, size_t n,
                               struct kg_err *err) KG_MUST_CHECK;

/* ---- rows: see struct kg_task_row ---- */
kg_status kg_task_arithmetic_load(struct kg_dataset *d, const struct kg_task_opts *opts,
                                  const char *path, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_task_arithmetic_grade(struct kg_grade *g, const struct kg_record *r,
                                   const char *response, size_t n,
                                   struct kg_err *err) KG_MUST_CHECK;
kg_status kg_task_arithmetic_extract(struct kg_str *out, const struct kg_task_opts *opts,
                                     const struct kg_grade_item *item,
                                     struct kg_err *err) KG_MUST_CHECK;
kg_status kg_task_countdown_load(struct kg_dataset *d, const struct kg_task_opts *opts,
                                 const char *path, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_task_countdown_grade(struct kg_grade *g, const struct kg_record *r,
                                  const char *response, size_t n,
                                  struct kg_err *err) KG_MUST_CHECK;
kg_status kg_task_digits_load(struct kg_dataset *d, const struct kg_task_opts *opts,
                              const char *path, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_task_digits_grade(struct kg_grade *g, const struct kg_record *r,
                               const char *response, size_t n,
                               struct kg_err *err) KG_MUST_CHECK;
kg_status kg_task_qa_number_load(struct kg_dataset *d, const struct kg_task_opts *opts,
                                 const char *path, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_task_qa_number_grade(struct kg_grade *g, const struct kg_record *r,
                                  const char *response, size_t n,
                                  struct kg_err *err) KG_MUST_CHECK;
kg_status kg_task_qa_number_extract(struct kg_str *out, const struct kg_task_opts *opts,
                                    const struct kg_grade_item *item,
                                    struct kg_err *err) KG_MUST_CHECK;
kg_status kg_task_math_load(struct kg_dataset *d, const struct kg_task_opts *opts,
                            const char *path, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_task_math_grade(struct kg_grade *g, const struct kg_task_opts *opts,
                             const struct kg_grade_item *item,
                             struct kg_err *err) KG_MUST_CHECK;
kg_status kg_task_search_qa_load(struct kg_dataset *d, const struct kg_task_opts *opts,
                                 const char *path, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_task_search_qa_grade(struct kg_grade *g, const struct kg_task_opts *opts,
                                  const struct kg_grade_item *item,
                                  struct kg_err *err) KG_MUST_CHECK;
kg_status kg_task_math_extract(struct kg_str *out, const struct kg_task_opts *opts,
                               const struct kg_grade_item *item,
                               struct kg_err *err) KG_MUST_CHECK;
kg_status kg_task_math_same(bool *same, const struct kg_task_opts *opts, const char *a,
                            const char *b, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_task_search_qa_extract(struct kg_str *out, const struct kg_task_opts *opts,
                                    const struct kg_grade_item *item,
                                    struct kg_err *err) KG_MUST_CHECK;
kg_status kg_task_search_qa_same(bool *same, const struct kg_task_opts *opts,
                                 const char *a, const char *b,
                                 struct kg_err *err) KG_MUST_CHECK;
kg_status kg_task_none_load(struct kg_dataset *d, const struct kg_task_opts *opts,
                            const char *path, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_task_none_grade(struct kg_grade *g, const struct kg_record *r,
                             const char *response, size_t n,
                             struct kg_err *err) KG_MUST_CHECK;
kg_status kg_task_external_load(struct kg_dataset *d, const struct kg_task_opts *opts,
                                const char *path, struct kg_err *err) KG_MUST_CHECK;
/* All items by one run of opts->command. */
kg_status kg_task_external_grade(struct kg_grade *grades, const struct kg_task_opts *opts,
                                 const struct kg_grade_item *items, size_t n,
                                 struct kg_err *err) KG_MUST_CHECK;

/* By opts->rewards.   opts: of the call; its `undecided` is that of every part */
kg_status kg_task_rewards_grade(struct kg_grade *grades, const struct kg_task_opts *opts,
                                const struct kg_grade_item *items, size_t n,
                                struct kg_err *err) KG_MUST_CHECK;
/* errors: EINVAL (no command, no time) */
kg_status kg_task_external_check(const struct kg_task_opts *opts,
                                 struct kg_err *err) KG_MUST_CHECK;

/* ---- child processes ---- */
struct kg_task_command {
    const char *command; /* run by sh -c in a process group of its own */
    /* names "A,B" of variables that it gets besides the usual ones; NULL: none */
    const char *env;
    int timeout_ms; /* for a batch; then it is killed with all it started */
};
/* errors: EINVAL (a name of a variable that is not set) */
kg_status kg_task_env_check(const char *names, struct kg_err *err) KG_MUST_CHECK;

struct kg_task_child;
/* errors: EIO, ENOMEM */
kg_status kg_task_child_start(struct kg_task_child **child,
                              const struct kg_task_command *command,
                              struct kg_err *err) KG_MUST_CHECK;
struct kg_task_talk {
    const char *input; /* all of the standard input */
    size_t input_n;
    size_t lines;      /* of answers that are waited for */
    size_t max_output; /* bytes of answers */
    bool end;          /* the input ends behind this, and the child with it */
    /* one that has read everything and says nothing for a while has its input ended */
    bool patient;
};
/* Feed it, and append what it writes: until there are enough lines, or it has ended.
 * errors: ETIMEOUT (with the last line of its standard error), EFORMAT (more than
 * max_output), EIO, EINTERRUPTED (a stop was asked for, and it took its time) */
kg_status kg_task_child_ask(struct kg_str *out, struct kg_task_child *child,
                            const struct kg_task_talk *talk,
                            struct kg_err *err) KG_MUST_CHECK;
/* Append what it has written without having been asked, or writes within wait_ms. */
kg_status kg_task_child_hear(struct kg_str *out, struct kg_task_child *child,
                             const struct kg_task_talk *talk, int wait_ms,
                             struct kg_err *err) KG_MUST_CHECK;
bool kg_task_child_ended(const struct kg_task_child *child);
bool kg_task_child_listens(const struct kg_task_child *child); /* its input is open */
bool kg_task_child_is_done(const struct kg_task_child *child); /* we have ended it */
/* Kill what is left of it and all that it started, and free it; NULL is allowed. */
void kg_task_child_kill(struct kg_task_child *child);
/* The same for one that has ended.   errors: EIO (its exit status is not 0: with the last
 * line of its standard error) */
kg_status kg_task_child_end(struct kg_task_child *child, struct kg_err *err);

/* Ask a program that stays. */
kg_status kg_task_grader_ask(struct kg_str *out, struct kg_task_grader *grader,
                             const struct kg_task_talk *talk,
                             struct kg_err *err) KG_MUST_CHECK;

/* ---- generators ---- */
/* Draws of one attempt at one problem, counted: the k-th is a function of seed, index,
 * attempt, level and k. */
struct kg_task_draw {
    struct kg_rng_key key;
    uint64_t index;
    uint32_t variant; /* attempt and level */
    uint32_t next;
};
uint64_t kg_task_draw_below(struct kg_task_draw *draw, uint64_t n);

/* A level of a generator makes one problem. problem: canonical text by which train and
 * held-out are told apart; the record's strings are appended to the kg_strs. faulty: the
 * solution must have a wrong step. */
struct kg_task_made {
    struct kg_str prompt;
    struct kg_str ground_truth;
    struct kg_str solution;
    struct kg_str problem;
};
struct kg_task_level {
    const char *name;
    kg_status (*make)(struct kg_task_made *out, struct kg_task_draw *draw,
                      const void *level, bool faulty, struct kg_err *err);
    const void *data; /* handed to make */
};
/* opts->count problems of opts->level ("a+b" takes turns) into d.
 * errors: EINVAL (count, fault rate, a level that the table lacks), ENOMEM */
kg_status kg_task_generate(struct kg_dataset *d, const char *task,
                           const struct kg_task_level *levels,
                           const struct kg_task_opts *opts,
                           struct kg_err *err) KG_MUST_CHECK;

/* ---- numbers in text ---- */
enum { KG_TASK_NUMBER_BYTES = 96 };
/* An exact decimal in canonical form: optional '-', digits without leading zeros,
 * optional fraction without trailing zeros. */
struct kg_task_number {
    char text[KG_TASK_NUMBER_BYTES];
    bool overflow; /* longer than the text holds: equal to nothing */
};
bool kg_task_number_same(const struct kg_task_number *a, const struct kg_task_number *b);
/* Append it; nothing for one that equals nothing. */
kg_status kg_task_number_put(struct kg_str *out, const struct kg_task_number *number,
                             struct kg_err *err) KG_MUST_CHECK;
/* `same` of tasks whose answers are numbers in canonical form: equal texts. */
kg_status kg_task_number_same_text(bool *same, const struct kg_task_opts *opts,
                                   const char *a, const char *b,
                                   struct kg_err *err) KG_MUST_CHECK;
/* The only number of the text.   returns false when there is none or more than one */
bool kg_task_number_only(struct kg_task_number *out, const char *text, size_t n);
bool kg_task_number_last(struct kg_task_number *out, const char *text, size_t n);
/* What stands behind the last "####", up to the end of its line.   returns NULL when
 * there is no such marker */
const char *kg_task_after_marker(const char *text, size_t n, size_t *len);

#endif
