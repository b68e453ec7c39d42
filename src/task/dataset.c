/* Data sets: records that own their strings, and reading them from files in the schemas
 * that people use.
 *
 * A file is either read completely, or refused with a message that names the invalid
 * record. A record that is dropped silently would change the results of a run.
 */
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "data/records.h"
#include "task/task_internal.h"
#include "text/messages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RECORDS = 1 << 28 };

static void record_release(struct kg_record *r)
{
    kg_mem_free(r->prompt);
    kg_mem_free(r->ground_truth);
    kg_mem_free(r->solution);
    kg_mem_free(r->data_source);
    kg_mem_free(r->extra_json);
    kg_mem_free(r->id);
    kg_mem_free(r->turns);
    memset(r, 0, sizeof *r);
}

void kg_dataset_release(struct kg_dataset *d)
{
    for (size_t i = 0; i < d->n; i++)
        record_release(&d->records[i]);
    for (size_t i = 0; i < d->n_files; i++)
        kg_mem_free(d->files[i].name);
    kg_mem_free(d->files);
    kg_mem_free(d->records);
    kg_mem_free(d->name);
    memset(d, 0, sizeof *d);
}

/* *to becomes a copy of text; NULL stays NULL */
static kg_status copy(char **to, const char *text, struct kg_err *err)
{
    *to = text ? kg_mem_strdup(text, err) : NULL;
    return text && !*to ? err->code : KG_OK;
}

static kg_status record_copy(struct kg_record *to, const struct kg_record *from,
                             struct kg_err *err)
{
    to->line = from->line;
    to->is_single = from->is_single;
    KG_TRY(copy(&to->prompt, from->prompt, err));
    KG_TRY(copy(&to->ground_truth, from->ground_truth ? from->ground_truth : "", err));
    KG_TRY(copy(&to->solution, from->solution, err));
    KG_TRY(copy(&to->data_source, from->data_source ? from->data_source : "", err));
    KG_TRY(copy(&to->id, from->id, err));
    KG_TRY(copy(&to->turns, from->turns, err));
    return copy(&to->extra_json, from->extra_json, err);
}

kg_status kg_dataset_push(struct kg_dataset *d, const struct kg_record *r,
                          struct kg_err *err)
{
    KG_TRY(kg_mem_grow(&d->records, &d->capacity, d->n + 1, sizeof *d->records,
                       MAX_RECORDS, "data set", err));
    kg_status status = record_copy(&d->records[d->n], r, err);
    if (status == KG_OK)
        d->n++;
    else
        record_release(&d->records[d->n]);
    return status;
}

void kg_dataset_drop(struct kg_dataset *d, const bool *drop)
{
    size_t kept = 0;

    for (size_t i = 0; i < d->n; i++) {
        struct kg_record r = d->records[i];

        if (drop[i]) {
            record_release(&d->records[i]);
            continue;
        }
        if (kept < i)
            memset(&d->records[i], 0, sizeof d->records[i]);
        d->records[kept++] = r;
    }
    d->n = kept;
}

/* ---- several files ---- */

static kg_status add_file(struct kg_dataset *d, const char *name, size_t end,
                          int64_t repeated, struct kg_err *err)
{
    KG_TRY(kg_mem_grow(&d->files, &d->files_capacity, d->n_files + 1, sizeof *d->files,
                       MAX_RECORDS, "files of a data set", err));
    struct kg_dataset_file *file = &d->files[d->n_files];
    file->end = end;
    file->dropped_repeated = repeated;
    KG_TRY(copy(&file->name, name, err));
    d->n_files++;
    return KG_OK;
}

static kg_status join_names(struct kg_dataset *d, const char *name, struct kg_err *err)
{
    struct kg_str both = {0};
    kg_status status;
    char *text = NULL;

    KG_TRY_GOTO(out, kg_str_printf(&both, err, "%s, %s", d->name, name));
    text = kg_str_take(&both, err);
    KG_TRY_GOTO(out, text ? KG_OK : err->code);
    kg_mem_free(d->name);
    d->name = text;
out:
    kg_str_release(&both);
    return status;
}

kg_status kg_dataset_join(struct kg_dataset *d, struct kg_dataset *more,
                          struct kg_err *err)
{
    KG_TRY(kg_mem_grow(&d->records, &d->capacity, d->n + more->n, sizeof *d->records,
                       MAX_RECORDS, "data set", err));
    if (d->n_files == 0)
        KG_TRY(add_file(d, d->name, d->n, d->dropped_repeated, err));
    KG_TRY(join_names(d, more->name, err));
    KG_TRY(add_file(d, more->name, d->n + more->n, more->dropped_repeated, err));
    if (more->n > 0)
        memcpy(d->records + d->n, more->records, more->n * sizeof *d->records);
    d->n += more->n;
    d->dropped_no_prompt += more->dropped_no_prompt;
    d->dropped_too_long += more->dropped_too_long;
    d->dropped_excluded += more->dropped_excluded;
    d->dropped_golds += more->dropped_golds;
    d->dropped_repeated += more->dropped_repeated;
    d->repeated += more->repeated;
    more->n = 0; /* moved */
    kg_dataset_release(more);
    return KG_OK;
}

const char *kg_dataset_file(const struct kg_dataset *d, size_t i)
{
    for (size_t f = 0; f < d->n_files; f++)
        if (i < d->files[f].end)
            return d->files[f].name;
    return d->name;
}

/* ---- repeated problems ---- */

/* Published validation files contain a problem once for each completion to sample. */
struct place {
    uint64_t hash; /* of question, answer and source */
    bool excluded; /* these sort last: a wanted record is never dropped for them */
    size_t at;
};

/* The question, or the conversation that contains it. */
static const char *asked(const struct kg_record *r)
{
    return r->turns ? r->turns : r->prompt;
}

static uint64_t problem_hash(const struct kg_record *r)
{
    return kg_hash_bytes(asked(r), strlen(asked(r))) * 3 +
           kg_hash_bytes(r->ground_truth, strlen(r->ground_truth)) * 5 +
           kg_hash_bytes(r->data_source, strlen(r->data_source)) * 7;
}

static bool is_same(const struct kg_record *a, const struct kg_record *b)
{
    return strcmp(asked(a), asked(b)) == 0 &&
           strcmp(a->ground_truth, b->ground_truth) == 0 &&
           strcmp(a->data_source, b->data_source) == 0;
}

static int by_hash(const void *a, const void *b)
{
    const struct place *x = a, *y = b;

    if (x->hash != y->hash)
        return x->hash < y->hash ? -1 : 1;
    if (x->excluded != y->excluded)
        return x->excluded ? 1 : -1;
    return (x->at > y->at) - (x->at < y->at);
}

/* Whether one of places[first, i), of equal hash, has the problem of place i. */
static bool is_again(const struct kg_dataset *d, const struct place *places, size_t first,
                     size_t i, const bool *again)
{
    for (size_t j = first; j < i; j++)
        if (!again[places[j].at] &&
            is_same(&d->records[places[j].at], &d->records[places[i].at]))
            return true;
    return false;
}

/* again[i]: record i repeats one that sorts before it. */
static kg_status mark_again(bool *again, const struct kg_dataset *d, struct kg_err *err)
{
    struct place *places = kg_mem_calloc(d->n, sizeof *places, "records", err);
    size_t first = 0;

    if (!places)
        return err->code;
    for (size_t i = 0; i < d->n; i++)
        places[i] = (struct place){problem_hash(&d->records[i]), d->records[i].excluded,
                                   i};
    qsort(places, d->n, sizeof *places, by_hash);
    for (size_t i = 0; i < d->n; i++) {
        first = places[i].hash == places[first].hash ? first : i;
        again[places[i].at] = is_again(d, places, first, i, again);
    }
    kg_mem_free(places);
    return KG_OK;
}

kg_status kg_task_settle_repeated(struct kg_dataset *d, bool unique, struct kg_err *err)
{
    bool *again = kg_mem_calloc(d->n, sizeof *again, "records", err);
    kg_status status = again ? mark_again(again, d, err) : err->code;
    int64_t n = 0;

    for (size_t i = 0; i < d->n && status == KG_OK; i++)
        n += again[i];
    if (unique && n > 0)
        kg_dataset_drop(d, again);
    if (unique)
        d->dropped_repeated = n;
    else
        d->repeated = n;
    kg_mem_free(again);
    return status;
}

void kg_dataset_warn_repeated(const struct kg_dataset *d, const char *key)
{
    if (d->repeated > 0)
        kg_log_warn("%s: %lld of %zu records repeat a problem of the file and count as "
                    "separate problems; %s keeps the first of each",
                    d->name, (long long)d->repeated, d->n, key);
}

/* ---- looking into a line ---- */

/* A named column: the key itself, or a path "a.b" into objects. */
static const struct kg_json *find_path(const struct kg_json *object, const char *path)
{
    const struct kg_json *v = kg_json_get(object, path);
    const char *dot = strchr(path, '.');
    char head[64];

    if (v || !dot || (size_t)(dot - path) >= sizeof head)
        return v;
    memcpy(head, path, (size_t)(dot - path));
    head[dot - path] = 0;
    return find_path(kg_json_get(object, head), dot + 1);
}

/* The first key that has a value.   *key: its name */
static const struct kg_json *find_first(const struct kg_json *object,
                                        const char *const *keys, const char **key)
{
    for (; *keys; keys++) {
        const struct kg_json *v = find_path(object, *keys);

        *key = *keys;
        if (v && kg_json_type(v) != KG_JSON_NULL)
            return v;
    }
    return NULL;
}

struct line {
    const struct kg_json_doc *doc;
    struct kg_str prompt;
    struct kg_str turns;
    struct kg_str answer;
    struct kg_str solution;
    struct kg_str source;
    struct kg_str extra;
    struct kg_str id;
    bool is_single; /* turns has one message, which is text */
};

static char *text_of(const struct kg_str *s)
{
    static char empty[1];

    return s->data ? s->data : empty;
}

static void line_clear(struct line *line)
{
    kg_str_clear(&line->prompt);
    kg_str_clear(&line->turns);
    kg_str_clear(&line->answer);
    kg_str_clear(&line->solution);
    kg_str_clear(&line->source);
    kg_str_clear(&line->extra);
    kg_str_clear(&line->id);
}

static void line_release(struct line *line)
{
    kg_str_release(&line->prompt);
    kg_str_release(&line->turns);
    kg_str_release(&line->answer);
    kg_str_release(&line->solution);
    kg_str_release(&line->source);
    kg_str_release(&line->extra);
    kg_str_release(&line->id);
}

/* Appends a string value. Records hold C strings, which a NUL would cut silently. */
static kg_status put_text(struct kg_str *out, const struct line *line,
                          const struct kg_json *v, const char *key, struct kg_err *err)
{
    size_t n;
    const char *text = kg_json_text(v, &n);

    if (!text)
        return kg_fail(err, KG_EFORMAT, "%s: key '%s': expected string, found %s",
                       line->doc->where, key, kg_json_type_name(v));
    if (strlen(text) != n)
        return kg_fail(err, KG_EFORMAT,
                       "%s: key '%s': expected text without NUL, found one at byte %zu",
                       line->doc->where, key, strlen(text));
    return kg_str_append(out, text, n, err);
}

/* Sets the prompt to what kg_messages_put wrote: the only text, or the list. */
static kg_status put_list(struct line *line, const char *json, size_t n,
                          struct kg_err *err)
{
    struct kg_json_doc doc = {0};
    kg_status status;

    KG_TRY(kg_json_parse(&doc, json, n, "messages", err));
    const struct kg_json *only = kg_json_get(kg_json_at(doc.root, 0), "content");
    line->is_single = kg_json_size(doc.root) == 1 && kg_json_text(only, NULL);
    status = line->is_single ? put_text(&line->prompt, line, only, "content", err)
                             : kg_json_put_value(&line->prompt, doc.root, err);
    kg_json_release(&doc);
    return status;
}

/* The file seems to be one object with a list for each key. */
static kg_status refuse_column(const struct line *line, const char *key, size_t n,
                               struct kg_err *err)
{
    return kg_fail(err, KG_EFORMAT,
                   "%s: key '%s': expected one prompt, text or messages, found a list of "
                   "%zu values. Columns become records by: " KG_RECORDS_OF_COLUMNS,
                   line->doc->where, key, n);
}

/* verl's prompt is a list of chat messages, which is kept: kg_task_load makes text of it.
 * Until then the prompt is the content of a single message, so that tasks find the
 * question, else the list as JSON. */
static kg_status put_messages(struct line *line, const struct kg_json *v, const char *key,
                              struct kg_err *err)
{
    const struct kg_json *tools = kg_json_get(line->doc->root, "tools");
    size_t n = kg_json_size(v), from;

    if (n == 0)
        return kg_fail(err, KG_EFORMAT, "%s: key '%s': expected messages, found none",
                       line->doc->where, key);
    if (kg_json_type(kg_json_at(v, 0)) != KG_JSON_OBJECT)
        return refuse_column(line, key, n, err);
    KG_TRY(kg_str_puts(&line->turns, "{\"messages\": ", err));
    from = line->turns.len;
    if (kg_messages_put(&line->turns, v, n, NULL, err) != KG_OK)
        return kg_err_prefix(err, "%s: key '%s'", line->doc->where, key);
    KG_TRY(put_list(line, line->turns.data + from, line->turns.len - from, err));
    if (kg_json_type(tools) != KG_JSON_NULL) {
        KG_TRY(kg_str_puts(&line->turns, ", \"tools\": ", err));
        KG_TRY(kg_json_put_value(&line->turns, tools, err));
    }
    return kg_str_putc(&line->turns, '}', err);
}

struct keys {
    char text[160];
};

/* The keys of a record, for a message that asks for one of them. */
static struct keys keys_of(const struct kg_json *root)
{
    struct keys k = {"none"};
    size_t used = 0;

    for (size_t i = 0; i < kg_json_size(root) && used < sizeof k.text; i++)
        used += (size_t)snprintf(k.text + used, sizeof k.text - used, "%s%.40s",
                                 i ? ", " : "the keys ", kg_json_key_at(root, i));
    return k;
}

static kg_status read_prompt(struct line *line, const char *named, struct kg_err *err)
{
    static const char *const usual[] = {"prompt", "question", "problem", "text", NULL};
    const char *const only[] = {named, NULL};
    const char *key = NULL;
    bool is_named = named && *named;
    const struct kg_json *v = find_first(line->doc->root, is_named ? only : usual, &key);

    if (!v)
        return kg_fail(err, KG_EFORMAT, "%s: expected a prompt under %s, found %s",
                       line->doc->where,
                       is_named ? named : "prompt, question, problem or text",
                       keys_of(line->doc->root).text);
    if (kg_json_type(v) == KG_JSON_ARRAY)
        KG_TRY(put_messages(line, v, key, err));
    else
        KG_TRY(put_text(&line->prompt, line, v, key, err));
    if (line->prompt.len == 0)
        return kg_fail(err, KG_EFORMAT,
                       "%s: key '%s': expected a prompt, found empty text",
                       line->doc->where, key);
    return KG_OK;
}

static kg_status put_answer(struct line *line, const struct kg_json *v, const char *key,
                            struct kg_err *err)
{
    switch (kg_json_type(v)) {
    case KG_JSON_BOOL: /* as Python prints it, which is how a record's text names it */
        return kg_str_puts(&line->answer, kg_json_bool(v, false) ? "True" : "False", err);
    case KG_JSON_INT:
    case KG_JSON_REAL:
    case KG_JSON_ARRAY:
    case KG_JSON_OBJECT:
        return kg_json_put_value(&line->answer, v, err);
    default:
        return put_text(&line->answer, line, v, key, err);
    }
}

static kg_status read_answer(struct line *line, const char *named, bool need,
                             struct kg_err *err)
{
    static const char *const usual[] = {"reward_model.ground_truth",
                                        "golden_answers",
                                        "answer",
                                        "answers",
                                        "ground_truth",
                                        "completion",
                                        "response",
                                        NULL};
    const char *const only[] = {named, NULL};
    const char *key = NULL;
    bool is_named = named && *named;
    const struct kg_json *v = find_first(line->doc->root, is_named ? only : usual, &key);

    if (v)
        return put_answer(line, v, key, err);
    if (!need)
        return KG_OK;
    return kg_fail(
        err, KG_EFORMAT, "%s: expected an answer under %s, found %s", line->doc->where,
        is_named
            ? named
            : "reward_model.ground_truth, golden_answers, answer, answers, ground_truth, "
              "completion or response",
        keys_of(line->doc->root).text);
}

/* Reads worked response, source, id and extra_info.   *has_solution: there is a worked
 * response */
static kg_status read_rest(struct line *line, bool *has_solution, struct kg_err *err)
{
    static const char *const solutions[] = {"solution", "completion", "response", NULL};
    const struct kg_json *root = line->doc->root;
    const struct kg_json *source = kg_json_get(root, "data_source");
    const struct kg_json *extra = kg_json_get(root, "extra_info");
    const struct kg_json *id = kg_json_get(root, "id");
    const char *key;
    const struct kg_json *solution = find_first(root, solutions, &key);
    size_t n;

    *has_solution = kg_json_type(solution) == KG_JSON_STRING;
    if (*has_solution)
        KG_TRY(put_text(&line->solution, line, solution, key, err));
    /* GSM8K's answers contain their solution, in any task */
    if (!*has_solution && line->answer.len > 0 &&
        kg_task_after_marker(line->answer.data, line->answer.len, &n)) {
        *has_solution = true;
        KG_TRY(kg_str_append(&line->solution, line->answer.data, line->answer.len, err));
    }
    if (kg_json_type(source) == KG_JSON_STRING)
        KG_TRY(put_text(&line->source, line, source, "data_source", err));
    if (kg_json_type(id) == KG_JSON_STRING)
        KG_TRY(put_text(&line->id, line, id, "id", err));
    if (kg_json_type(extra) != KG_JSON_NULL)
        KG_TRY(kg_json_put_value(&line->extra, extra, err));
    return KG_OK;
}

/* ---- reading a file ---- */

static kg_status read_record(struct kg_dataset *d, struct line *line,
                             const struct kg_task_opts *opts, bool need_answer,
                             int64_t number, struct kg_err *err)
{
    struct kg_record r = {.line = number};
    bool has_solution;

    line_clear(line);
    KG_TRY(read_prompt(line, opts->prompt_key, err));
    KG_TRY(read_answer(line, opts->answer_key, need_answer, err));
    KG_TRY(read_rest(line, &has_solution, err));
    r.prompt = line->prompt.data;
    r.turns = line->turns.len ? line->turns.data : NULL;
    r.is_single = line->is_single;
    r.ground_truth = line->answer.data;
    r.data_source = line->source.data;
    r.solution = has_solution ? text_of(&line->solution) : NULL;
    r.id = line->id.len ? line->id.data : NULL;
    r.extra_json = line->extra.len ? line->extra.data : NULL;
    return kg_dataset_push(d, &r, err);
}

static kg_status read_records(struct kg_dataset *d, struct kg_records *records,
                              const struct kg_task_opts *opts, bool need_answer,
                              struct kg_err *err)
{
    struct kg_json_doc doc = {0};
    struct line line = {.doc = &doc};
    bool more = false;
    kg_status status;

    for (;;) {
        KG_TRY_GOTO(out, kg_records_next(records, &doc, &more, err));
        if (!more)
            break;
        KG_TRY_GOTO(out, read_record(d, &line, opts, need_answer,
                                     kg_records_number(records), err));
    }
    if (d->n == 0)
        status = kg_fail(err, KG_EINVAL, "%s: expected at least one record, found none",
                         d->name);
out:
    line_release(&line);
    kg_json_release(&doc);
    return status;
}

kg_status kg_dataset_read(struct kg_dataset *d, const char *path, const char *prompt_key,
                          const char *answer_key, bool need_answer, struct kg_err *err)
{
    const struct kg_task_opts opts = {.prompt_key = prompt_key, .answer_key = answer_key};

    return kg_task_read(d, path, &opts, need_answer, err);
}

kg_status kg_task_read_all(struct kg_dataset *d, const char *path,
                           const struct kg_task_opts *opts, bool need_answer,
                           struct kg_err *err)
{
    struct kg_records *records = NULL;
    kg_status status;

    memset(d, 0, sizeof *d);
    d->is_file = true;
    KG_TRY_GOTO(out, copy(&d->name, path, err));
    KG_TRY_GOTO(out, kg_records_open(&records, path, err));
    d->unit = kg_records_unit(records);
    KG_TRY_GOTO(out, read_records(d, records, opts, need_answer, err));
    snprintf(d->format, sizeof d->format, "%s", kg_records_format(records));
out:
    kg_records_close(records);
    if (status != KG_OK)
        kg_dataset_release(d);
    return status;
}

kg_status kg_task_read(struct kg_dataset *d, const char *path,
                       const struct kg_task_opts *opts, bool need_answer,
                       struct kg_err *err)
{
    KG_TRY(kg_task_read_all(d, path, opts, need_answer, err));
    if (kg_task_settle_repeated(d, opts->unique, err) == KG_OK)
        return KG_OK;
    kg_dataset_release(d);
    return err->code;
}

kg_status kg_task_split_answer(struct kg_record *r, const char *truth, size_t n,
                               struct kg_err *err)
{
    char *own = kg_mem_calloc(n + 1, 1, "gold answer", err);

    if (!own)
        return err->code;
    memcpy(own, truth, n);
    if (r->solution)
        kg_mem_free(r->ground_truth);
    else
        r->solution = r->ground_truth;
    r->ground_truth = own;
    return KG_OK;
}

/* ---- questions ---- */

bool kg_task_has_question(const struct kg_record *r) { return !r->turns || r->is_single; }

/* Puts the conversation with `text` as the content of its only message. */
static kg_status put_single(struct kg_str *out, const struct kg_json *root,
                            const char *text, struct kg_err *err)
{
    const struct kg_json *message = kg_json_at(kg_json_get(root, "messages"), 0);
    const struct kg_json *tools = kg_json_get(root, "tools");
    const char *role = kg_json_text(kg_json_get(message, "role"), NULL);

    if (!role)
        role = "user";
    KG_TRY(kg_json_put_text(out, "{\"messages\": [{\"role\": ", role, err));
    KG_TRY(kg_json_put_text(out, ", \"content\": ", text, err));
    KG_TRY(kg_str_puts(out, "}]", err));
    if (tools) {
        KG_TRY(kg_str_puts(out, ", \"tools\": ", err));
        KG_TRY(kg_json_put_value(out, tools, err));
    }
    return kg_str_putc(out, '}', err);
}

static kg_status set_turns(struct kg_record *r, const char *text, struct kg_err *err)
{
    struct kg_json_doc doc = {0};
    struct kg_str json = {0};
    kg_status status;
    char *turns;

    KG_TRY_GOTO(out, kg_json_parse(&doc, r->turns, strlen(r->turns), "prompt", err));
    KG_TRY_GOTO(out, put_single(&json, doc.root, text, err));
    turns = kg_str_take(&json, err);
    KG_TRY_GOTO(out, turns ? KG_OK : err->code);
    kg_mem_free(r->turns);
    r->turns = turns;
out:
    kg_json_release(&doc);
    kg_str_release(&json);
    return status;
}

kg_status kg_task_set_question(struct kg_record *r, char *text, struct kg_err *err)
{
    kg_mem_free(r->prompt);
    r->prompt = text;
    return r->turns ? set_turns(r, text, err) : KG_OK;
}
