/* The command line: a table of commands, each with a table of flags, and functions that
 * commands share.
 *
 * A command's flag table is the only description of its flags: the parser fills their
 * targets by it, and --help, the man page and the shell completion are generated from it.
 * A process runs one command, so targets are static variables of the command's file,
 * initialised with the defaults.
 *
 * Results go to stdout through kg_cli_put and its checked writes; messages go to stderr.
 * Exit status: 0 done, 1 failure, 2 wrong command line, 128 + N ended by signal N.
 */
#ifndef KG_CLI_CLI_H
#define KG_CLI_CLI_H

#include "base/option.h"
#include "base/status.h"
#include "base/str.h"
#include "ranks/ranks.h"
#include "task/qa.h"
#include "tensor/backend.h"

#include <stdbool.h>
#include <stdint.h>

struct kg_json_doc;
struct kg_model;
struct kg_tokenizer;

enum { KG_EXIT_OK = 0, KG_EXIT_FAILURE = 1, KG_EXIT_USAGE = 2, KG_EXIT_SIGNAL = 128 };

enum { KG_FLAG_LIST_MAX = 16 };
struct kg_flag_list {
    const char *items[KG_FLAG_LIST_MAX]; /* borrowed from argv */
    int n;
};

struct kg_flag;
/* Values of flags; if a flag is given twice, the last value counts. */
enum { KG_FLAG_KEYS_MAX = 128 };
struct kg_flag_keys {
    const struct kg_flag *flags[KG_FLAG_KEYS_MAX];
    const char *texts[KG_FLAG_KEYS_MAX]; /* borrowed from argv */
    int n;
};

struct kg_flag {
    const char *name;            /* without the dashes; NULL ends a table */
    char short_name;             /* 0: none */
    enum kg_opt_type type;       /* a BOOL has no value */
    bool clears;                 /* a BOOL: the flag sets it to false */
    const struct kg_flag *group; /* see KG_FLAGS_OF */
    void *target;                /* for a LIST (repeatable) a struct kg_flag_list */
    const char *key;   /* the target is struct kg_flag_keys; NULL: a variable of `type` */
    const char *needs; /* condition for the flag's (or group's) effect; NULL: none */
    /* "model.adapter": an argument model.adapter=VALUE means this flag, as in recipes;
     * NULL: no such spelling */
    const char *also;
    const char *arg_name; /* "N"; NULL for types without a value */
    const char *help;     /* one line, with the default where it matters */
    double min;           /* INT and REAL; min == max == 0 means no range */
    double max;
    const char *choices; /* "a|b" */
    bool or_zero;        /* 0 is also allowed */
};

/* The type of a flag, from its target variable. */
#define KG_TO_TYPE(variable)                                                             \
    _Generic((variable),                                                                 \
        bool: KG_OPT_BOOL,                                                               \
        int64_t: KG_OPT_INT,                                                             \
        int: KG_OPT_INT32,                                                               \
        double: KG_OPT_REAL,                                                             \
        float: KG_OPT_FLOAT,                                                             \
        const char *: KG_OPT_STRING,                                                     \
        struct kg_flag_list: KG_OPT_LIST)
/* Fills the fields from `type` to `also` for a flag with a target variable. */
#define KG_TO(variable)        KG_IF(NULL, variable)
#define KG_IF(needs, variable) KG_KEY_IF(NULL, needs, variable)
/* KG_IF with a key as a second spelling. */
#define KG_KEY_IF(also, needs, variable)                                                 \
    KG_TO_TYPE(variable), false, NULL, &(variable), NULL, needs, also
/* KG_TO and KG_IF for a bool that the flag sets to false. */
#define KG_CLEARS(variable) KG_CLEARS_IF(NULL, variable)
#define KG_CLEARS_IF(needs, variable)                                                    \
    KG_OPT_BOOL, true, NULL, &(variable), NULL, needs, NULL
/* Includes all rows of another table that commands share; groups do not nest. */
#define KG_FLAGS_OF(table) KG_FLAGS_IF(NULL, table)
#define KG_FLAGS_IF(what, table)                                                         \
    {                                                                                    \
        .name = "", .group = (table), .needs = (what)                                    \
    }

/* A walk over the flags of a table, with its groups:
 *
 *   struct kg_flag_walk walk = {flags, NULL};
 *   for (const struct kg_flag *f; (f = kg_flag_next(&walk));) */
struct kg_flag_walk {
    const struct kg_flag *next; /* NULL: none */
    const struct kg_flag *back; /* the row after the group; NULL: not in a group */
};
const struct kg_flag *kg_flag_next(struct kg_flag_walk *walk); /* NULL at the end */

/* One of the valid values of an argument. */
struct kg_term {
    const char *name;
    const char *help; /* one line */
};

struct kg_command {
    const char *name;
    const char *summary; /* one line */
    int (*run)(
        int argc,
        char **argv);  /* argv: arguments that are not flags; returns the exit status */
    const char *usage; /* "[flags] DIR" */
    /* NULL: `run` gets argc and argv unparsed */
    const struct kg_flag *flags;
    const char *details; /* paragraphs for --help and the man page; NULL for none */
    int max_args;        /* maximum number of arguments besides flags; < 0: any number */
    /* sets *term to the i-th valid value of the argument; returns false after the last.
     * NULL: no list of values */
    bool (*term)(struct kg_term *term, int i);
    const char *const *action; /* action that flags depend on; NULL: the first argument */
    const char *needs;         /* for flags whose `needs` names no action; NULL: none */
    const char *guest; /* the guest with the command (base/status.h); NULL: the trunk */
};

/* Ended by a row with name NULL. */
extern const struct kg_command kg_commands[];
const struct kg_command *kg_command_find(const char *name); /* or NULL */
/* Whether the command refuses a launcher of several processes (ranks/launch.h). */
bool kg_command_is_single(const struct kg_command *c);

/* Runs `kedge argv[1] ...`.   returns the exit status */
int kg_cli_main(int argc, char **argv);

/* ---- flags ---- */

/* Fills the targets. Arguments that are not flags are moved to the front of argv and
 * counted in *argc. *help: --help or -h was given (nothing else is checked then).
 * errors: EINVAL (a usage error) */
kg_status kg_flags_parse(const struct kg_command *c, int *argc, char **argv, bool *help,
                         struct kg_err *err) KG_MUST_CHECK;
/* Appends the spelling of a flag: "-n, --name ARG", "a.b=ARG, --name ARG". */
kg_status kg_flag_spell(struct kg_str *out, const struct kg_flag *f,
                        struct kg_err *err) KG_MUST_CHECK;
/* Appends the flag's actions and its help: "index, query: as JSON". */
kg_status kg_flag_help(struct kg_str *out, const struct kg_flag *f,
                       struct kg_err *err) KG_MUST_CHECK;
kg_status kg_command_help(struct kg_str *out, const struct kg_command *c,
                          struct kg_err *err) KG_MUST_CHECK;
kg_status kg_cli_overview(struct kg_str *out, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_cli_version(struct kg_str *out, struct kg_err *err) KG_MUST_CHECK;
kg_status kg_cli_man(struct kg_str *out, struct kg_err *err) KG_MUST_CHECK;
/* The script for bash and zsh.   errors: EINVAL (another shell), ENOMEM */
kg_status kg_cli_completion(struct kg_str *out, const char *shell,
                            struct kg_err *err) KG_MUST_CHECK;

/* ---- output ---- */

/* The exit status for a status: KG_EXIT_OK, KG_EXIT_FAILURE, or for EINTERRUPTED
 * KG_EXIT_SIGNAL plus the signal, as shells do. A rank stopped by another rank's signal
 * counts as ended by SIGTERM. */
int kg_cli_status(kg_status status);
/* Prints "kedge COMMAND: message" to stderr.   returns KG_EXIT_FAILURE, or kg_cli_status
 * for EINTERRUPTED */
int kg_cli_fail(const struct kg_err *err);
/* Starts (or restarts) the watch of this process (base/watch.h); warns if it cannot. */
void kg_cli_watch(void);
/* Prints the usage error and a hint to help; returns KG_EXIT_USAGE. */
int kg_cli_usage(const char *fmt, ...) KG_PRINTF(1, 2);
/* Usage error for a word that is not one of n names; suggests the nearest name. names, n,
 * stride: as in kg_str_nearest. */
int kg_cli_usage_unknown(const char *found, const void *names, size_t n, size_t stride);
/* KG_EXIT_OK, or the result of kg_cli_fail. */
int kg_cli_exit(kg_status status, const struct kg_err *err);

/* Writes all of s to stdout and clears s. If stdout is a terminal, control characters are
 * escaped (base/printable.h), because s may contain text of a file.
 * errors: EIO (of the device or pipe), ENOMEM */
kg_status kg_cli_put(struct kg_str *s, struct kg_err *err) KG_MUST_CHECK;
/* Prints s if `written` is OK; releases s in any case.
 * returns the first error */
kg_status kg_cli_print(kg_status written, struct kg_str *s,
                       struct kg_err *err) KG_MUST_CHECK;
/* As kg_cli_put without escaping, for text with colours that kg_printable_put has already
 * escaped.
 * errors: EIO */
kg_status kg_cli_put_as_it_is(struct kg_str *s, struct kg_err *err) KG_MUST_CHECK;

/* Writes s to a file, completely or not at all; but a device, pipe or link is written
 * directly.   errors: EIO, ENOSPACE */
kg_status kg_cli_write_file(const char *path, const struct kg_str *s,
                            struct kg_err *err) KG_MUST_CHECK;

/* A file that is written in parts: a temporary file next to path, renamed when complete.
 * A failure leaves the old file, so path may be the input. A device, pipe or link is
 * written directly. */
struct kg_cli_target {
    const char *path;   /* borrowed */
    struct kg_str name; /* owned: the file to write */
    bool as_it_is;      /* name is path: written directly */
};
kg_status kg_cli_target_open(struct kg_cli_target *t, const char *path,
                             struct kg_err *err) KG_MUST_CHECK;
/* Renames the complete and closed file `name` to path.   errors: EIO, ENOSPACE */
kg_status kg_cli_target_settle(struct kg_cli_target *t, struct kg_err *err) KG_MUST_CHECK;
void kg_cli_target_release(struct kg_cli_target *t); /* {0} allowed */

/* Handles one line of a filter: doc is its object; appends the output line to out. */
typedef kg_status kg_cli_line_fn(struct kg_str *out, const struct kg_json_doc *doc,
                                 void *context, struct kg_err *err);
/* Calls answer for every line of stdin and writes its output to stdout before the next
 * line is read.   errors: EFORMAT (not JSON, or no line at all), EIO, those of answer */
kg_status kg_cli_filter(kg_cli_line_fn *answer, void *context,
                        struct kg_err *err) KG_MUST_CHECK;

/* "1.50 GB" */
void kg_cli_bytes(char text[32], double bytes);

/* ---- commands ---- */
int kg_cmd_generate(int argc, char **argv);
int kg_cmd_chat(int argc, char **argv);
int kg_cmd_serve(int argc, char **argv);
int kg_cmd_score(int argc, char **argv);
int kg_cmd_tokenize(int argc, char **argv);
int kg_cmd_embed(int argc, char **argv) KG_GUEST;
int kg_cmd_chat_template(int argc, char **argv);
int kg_cmd_inspect(int argc, char **argv);
int kg_cmd_export(int argc, char **argv) KG_GUEST;
int kg_cmd_merge(int argc, char **argv);
int kg_cmd_new(int argc, char **argv);
int kg_cmd_pull(int argc, char **argv);
int kg_cmd_train(int argc, char **argv);
int kg_cmd_sft(int argc, char **argv);
int kg_cmd_distill(int argc, char **argv);
int kg_cmd_replay(int argc, char **argv) KG_GUEST;
int kg_cmd_report(int argc, char **argv);
int kg_cmd_eval(int argc, char **argv);
int kg_cmd_task(int argc, char **argv);
int kg_cmd_wiki(int argc, char **argv) KG_GUEST;
int kg_cmd_table(int argc, char **argv) KG_GUEST;
int kg_cmd_grade(int argc, char **argv);
int kg_cmd_show(int argc, char **argv);
int kg_cmd_data(int argc, char **argv);
int kg_cmd_search(int argc, char **argv) KG_GUEST;
int kg_cmd_algorithms(int argc, char **argv) KG_GUEST;
int kg_cmd_presets(int argc, char **argv);
int kg_cmd_policy(int argc, char **argv) KG_GUEST;
int kg_cmd_demo(int argc, char **argv);
int kg_cmd_doctor(int argc, char **argv);
int kg_cmd_bench(int argc, char **argv);
int kg_cmd_man(int argc, char **argv);
int kg_cmd_completion(int argc, char **argv);

extern const struct kg_flag kg_generate_flags[];
extern const struct kg_flag kg_chat_flags[];
extern const struct kg_flag kg_serve_flags[];
extern const struct kg_flag kg_score_flags[];
extern const struct kg_flag kg_tokenize_flags[];
extern const struct kg_flag kg_embed_flags[] KG_GUEST;
extern const struct kg_flag kg_chat_template_flags[];
extern const struct kg_flag kg_inspect_flags[];
extern const struct kg_flag kg_export_flags[] KG_GUEST;
extern const struct kg_flag kg_merge_flags[];
extern const struct kg_flag kg_new_flags[];
extern const struct kg_flag kg_pull_flags[];
extern const struct kg_flag kg_train_flags[]; /* of train, sft and distill */
extern const struct kg_flag kg_replay_flags[] KG_GUEST;
extern const struct kg_flag kg_report_flags[];
extern const struct kg_flag kg_eval_flags[];
extern const struct kg_flag kg_task_flags[];
extern const struct kg_flag kg_wiki_flags[] KG_GUEST;
extern const struct kg_flag kg_table_flags[] KG_GUEST;
extern const struct kg_flag kg_algorithms_flags[] KG_GUEST;
extern const struct kg_flag kg_presets_flags[];
extern const struct kg_flag kg_policy_flags[] KG_GUEST;
extern const struct kg_flag kg_grade_flags[];
extern const char *kg_grade_kind; /* value of --kind; kg_command.action of grade */
extern const struct kg_flag kg_show_flags[];
extern const struct kg_flag kg_data_flags[];
extern const struct kg_flag kg_search_flags[] KG_GUEST;
extern const struct kg_flag kg_demo_flags[];
extern const struct kg_flag kg_doctor_flags[];
extern const struct kg_flag kg_bench_flags[];
bool kg_bench_term(struct kg_term *term, int i);

/* Files installed by `make install`: recipes and suites. */

/* Finds an installed file. If path is relative and does not exist, but
 * PREFIX/share/kedge/PATH does (the program is in PREFIX/bin), *own is the latter path,
 * owned by the caller, and is logged; else *own is NULL.
 * returns *own, or path if *own is NULL; NULL after an error.   errors: ENOMEM */
const char *kg_cli_shared(char **own, const char *path, struct kg_err *err);

/* Commands that run as several processes, started by a launcher or forked here. */

/* Under a launcher (ranks/launch.h), joins the launcher's processes. Otherwise this
 * process becomes rank 0 and forks the other n - 1 ranks, connected by shared memory;
 * each returns from here with its own *r. Call it before starting any thread. n 1: a
 * single process unless there is a launcher. wait_s: timeout for a silent rank; 0: none;
 * command: as in kg_ranks_check_alike
 * errors: EINVAL (n out of range, or above 1 under a launcher), EIO (no more processes or
 * sockets), ENOMEM (no shared memory), those of kg_ranks_open and kg_ranks_check_alike */
kg_status kg_cli_ranks_begin(struct kg_ranks *r, int n, double wait_s,
                             const char *command, struct kg_err *err) KG_MUST_CHECK;

/* Ends this rank. Rank 0 prints the error that all ranks share. If ranks were forked,
 * rank 0 waits for the others and names those that a signal ended; the others exit here.
 * returns the exit status; KG_RANKS_EXIT_LOST if another rank was lost,
 * KG_RANKS_EXIT_UNLIKE if the ranks do not belong to one run */
int kg_cli_ranks_end(struct kg_ranks *r, kg_status status, struct kg_err *err);

/* The checks of ranks in kedge doctor. */

/* Appends which NCCL ranks would open here, or why there is none; nothing unless `be` is
 * a GPU. nccl: folder to search; NULL: as for a run
 * errors: those of kg_ranks_nccl_look if a folder was given */
kg_status kg_doctor_nccl(struct kg_str *out, const struct kg_backend *be,
                         const char *nccl, bool json, struct kg_err *err) KG_GUEST;

/* Checks the exchanges between ranks. *ok in: this rank passed so far; out: all ranks
 * passed, and these checks too. Appends a line for each rank and check; nothing for a
 * single process. be: this rank's backend; if it is a GPU, NCCL is checked too. A missing
 * NCCL is a failure only if a folder was given (nccl) or another rank has it.
 * errors: of the ranks, if one is lost */
kg_status kg_doctor_ranks(struct kg_str *out, bool *ok, struct kg_ranks *r,
                          const struct kg_backend *be, const char *nccl, bool json,
                          struct kg_err *err) KG_GUEST;

/* ---- kedge bench serve (guests/lab) ---- */

/* Compares a server under load with its engine alone. Rounds alternate: the engine
 * decodes all sequences; then a client for each sequence streams it from a server with
 * that model, where server and clients share the cores. */
struct kg_serve_load_opts {
    const struct kg_model *model;
    const struct kg_tokenizer *tok; /* NULL: streams ids instead of text */
    int streams;                    /* number of sequences; 0: 64 */
    int tokens;                     /* tokens per completion; 0: 256 */
    int rounds;                     /* 0: 5 */
    double piece_seconds;           /* kg_serve_opts.piece_seconds of the server */
    bool json;
};
/* Appends the token rates of engine and server, their ratio in the best round and its
 * median, and the processor time of both.
 * errors: of the engine and the server; EIO if a response was not as expected */
kg_status kg_serve_load(struct kg_str *out, const struct kg_serve_load_opts *opts,
                        struct kg_err *err) KG_GUEST;

/* ---- kedge grade --kind qa-* (cmd_grade.c) ---- */
struct kg_grade_qa {
    const struct kg_qa_metric *metric; /* NULL: extraction only */
    bool format;
    int pairs; /* number of answer pairs that a response must have */
    struct kg_qa_format scores;
    struct kg_qa_text *golds; /* (n_golds) owned array; texts of the current line */
    size_t n_golds;
    size_t capacity;
};
/* kind: "qa-em", "qa-subem", "qa-f1", "qa-format", "qa-extract".   errors: EINVAL */
kg_status kg_grade_qa_init(struct kg_grade_qa *g, const char *kind,
                           struct kg_err *err) KG_MUST_CHECK;
void kg_grade_qa_release(struct kg_grade_qa *g);
/* Handles one line of the filter; context is a struct kg_grade_qa. */
kg_status kg_grade_qa_line(struct kg_str *out, const struct kg_json_doc *doc,
                           void *context, struct kg_err *err) KG_MUST_CHECK;

#endif
