/* Shared by the files of task/: the functions of the rows, draws of generators, exact
 * numbers in text. */
#ifndef KG_TASK_TASK_INTERNAL_H
#define KG_TASK_TASK_INTERNAL_H

#include "base/rng.h"
#include "task/child.h"
#include "task/task.h"

/* kg_dataset_read with the columns named in opts. */
kg_status kg_task_read(struct kg_dataset *d, const char *path,
                       const struct kg_task_opts *opts, bool need_answer,
                       struct kg_err *err) KG_MUST_CHECK;

/* kg_dataset_read in two steps, between which a task may mark records as excluded.
 * read_all reads all records. settle_repeated counts or drops repeated problems; among
 * equal records it keeps the first that is not excluded, else the first. */
kg_status kg_task_read_all(struct kg_dataset *d, const char *path,
                           const struct kg_task_opts *opts, bool need_answer,
                           struct kg_err *err) KG_MUST_CHECK;
kg_status kg_task_settle_repeated(struct kg_dataset *d, bool unique,
                                  struct kg_err *err) KG_MUST_CHECK;

/* Whether the prompt is a plain question: text, or a single message of text. */
bool kg_task_has_question(const struct kg_record *r);
/* Replaces the question by text, which is taken (also on failure); in a conversation it
 * replaces the message's content. */
kg_status kg_task_set_question(struct kg_record *r, char *text,
                               struct kg_err *err) KG_MUST_CHECK;

/* truth: the part of a record's answer after a marker. Makes this part the ground truth,
 * and the whole answer the worked solution if the record has none. */
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
kg_status kg_task_environment_grade(struct kg_grade *g, const struct kg_task_opts *opts,
                                    const struct kg_grade_item *item,
                                    struct kg_err *err) KG_MUST_CHECK;
kg_status kg_task_external_load(struct kg_dataset *d, const struct kg_task_opts *opts,
                                const char *path, struct kg_err *err) KG_MUST_CHECK;
/* Grades all items by opts->running, or if NULL by one run of opts->command. */
kg_status kg_task_external_grade(struct kg_grade *grades, const struct kg_task_opts *opts,
                                 const struct kg_grade_item *items, size_t n,
                                 struct kg_err *err) KG_MUST_CHECK;

/* Grades by opts->rewards; opts->undecided applies to every reward. */
kg_status kg_task_rewards_grade(struct kg_grade *grades, const struct kg_task_opts *opts,
                                const struct kg_grade_item *items, size_t n,
                                struct kg_err *err) KG_MUST_CHECK;
/* errors: EINVAL (no command, no timeout) */
kg_status kg_task_external_check(const struct kg_task_opts *opts,
                                 struct kg_err *err) KG_MUST_CHECK;

/* Sends a batch to a persistent program and appends its replies to out. */
kg_status kg_task_grader_ask(struct kg_str *out, struct kg_task_grader *grader,
                             const struct kg_task_talk *talk,
                             struct kg_err *err) KG_MUST_CHECK;

/* ---- generators ---- */
/* Random draws of one attempt at one problem: the k-th is a function of seed, index,
 * attempt, level and k. */
struct kg_task_draw {
    struct kg_rng_key key;
    uint64_t index;
    uint32_t variant; /* attempt and level */
    uint32_t next;
};
uint64_t kg_task_draw_below(struct kg_task_draw *draw, uint64_t n);

/* A level of a generator makes one problem. The record's strings are appended to the
 * kg_strs. problem: canonical text, whose hash separates training from held-out problems.
 * faulty: the solution must contain a wrong step that leads to a wrong answer. */
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
    const void *data; /* passed to make */
};
/* Generates opts->count problems of opts->level ("a+b" alternates) into d.
 * errors: EINVAL (count, fault rate, unknown level), ENOMEM */
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
    bool overflow; /* too long for the text: equals nothing */
};
bool kg_task_number_same(const struct kg_task_number *a, const struct kg_task_number *b);
/* Appends the number; nothing if it overflowed. */
kg_status kg_task_number_put(struct kg_str *out, const struct kg_task_number *number,
                             struct kg_err *err) KG_MUST_CHECK;
/* kg_task_row.same for tasks whose answers are canonical numbers: compares the texts. */
kg_status kg_task_number_same_text(bool *same, const struct kg_task_opts *opts,
                                   const char *a, const char *b,
                                   struct kg_err *err) KG_MUST_CHECK;
/* The only number in the text.   returns false if there is none or more than one */
bool kg_task_number_only(struct kg_task_number *out, const char *text, size_t n);
bool kg_task_number_last(struct kg_task_number *out, const char *text, size_t n);
/* The text after the last "####", to the end of its line.   returns NULL if there is no
 * marker */
const char *kg_task_after_marker(const char *text, size_t n, size_t *len);

#endif
