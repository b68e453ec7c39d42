/* Trajectories: parallel arrays over tokens that grow together.
 *
 * All arrays share one capacity. They grow before anything is written, and the count
 * moves last, so a failed allocation leaves the trajectory as it was. The kept ids of
 * truncated sampling are ragged: one flat array in token order and a size per token,
 * created when the first truncated step arrives.
 */
#include "traj/traj.h"

#include "base/mem.h"
#include "data/json.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_TOKENS = 1 << 26 };
static const size_t max_kept = (size_t)1 << 40; /* bytes */

static const char *const finishes[KG_FINISH_COUNT] = {
    [KG_FINISH_NONE] = "none",           [KG_FINISH_STOP] = "stop",
    [KG_FINISH_STRING] = "stop_string",  [KG_FINISH_LENGTH] = "length",
    [KG_FINISH_CANCELLED] = "cancelled",
};

const char *kg_finish_name(enum kg_finish finish)
{
    assert(finish < KG_FINISH_COUNT);
    return finishes[finish];
}

kg_status kg_finish_find(enum kg_finish *finish, const char *name, const char *where,
                         struct kg_err *err)
{
    size_t i;

    KG_TRY(kg_str_pick(&i, KG_EFORMAT, where, name, finishes, KG_FINISH_COUNT,
                       sizeof *finishes, err));
    *finish = (enum kg_finish)i;
    return KG_OK;
}

void kg_traj_release(struct kg_traj *t)
{
    kg_mem_free(t->tokens);
    kg_mem_free(t->source);
    kg_mem_free(t->logp);
    kg_mem_free(t->top_ids);
    kg_mem_free(t->top_logp);
    kg_mem_free(t->kept_n);
    kg_mem_free(t->kept_bytes);
    kg_mem_free(t->kept);
    kg_mem_free(t->experts);
    kg_mem_free(t->windows);
    kg_mem_free(t->versions);
    memset(t, 0, sizeof *t);
}

/* Grows one array from the common capacity, which the caller sets when all have grown. */
static kg_status grow(void *block, size_t *reached, size_t capacity, size_t need,
                      size_t size, struct kg_err *err)
{
    *reached = capacity;
    return kg_mem_grow(block, reached, need, size, MAX_TOKENS, "trajectory", err);
}

static kg_status reserve(struct kg_traj *t, size_t need, struct kg_err *err)
{
    size_t k = (size_t)t->top_k, c = (size_t)t->choices;
    size_t capacity = t->capacity;
    size_t reached = capacity;

    if (need <= capacity)
        return KG_OK;
    KG_TRY(grow(&t->tokens, &reached, capacity, need, sizeof *t->tokens, err));
    KG_TRY(grow(&t->source, &reached, capacity, need, sizeof *t->source, err));
    KG_TRY(grow(&t->logp, &reached, capacity, need, sizeof *t->logp, err));
    if (k > 0) {
        KG_TRY(grow(&t->top_ids, &reached, capacity, need, k * sizeof *t->top_ids, err));
        KG_TRY(
            grow(&t->top_logp, &reached, capacity, need, k * sizeof *t->top_logp, err));
    }
    if (c > 0)
        KG_TRY(grow(&t->experts, &reached, capacity, need, c * sizeof *t->experts, err));
    if (t->kept_n)
        KG_TRY(grow(&t->kept_n, &reached, capacity, need, sizeof *t->kept_n, err));
    if (t->kept_bytes)
        KG_TRY(
            grow(&t->kept_bytes, &reached, capacity, need, sizeof *t->kept_bytes, err));
    t->capacity = reached;
    return KG_OK;
}

/* Marks the experts of the next n tokens as unknown. */
static void choose(struct kg_traj *t, size_t n)
{
    size_t c = (size_t)t->choices;

    for (size_t i = t->n * c; i < (t->n + n) * c; i++)
        t->experts[i] = KG_TRAJ_CHOOSES;
}

void kg_traj_route(struct kg_traj *t, size_t j, size_t n, const uint16_t *experts)
{
    size_t c = (size_t)t->choices;

    assert(j + n <= t->n);
    memcpy(t->experts + j * c, experts, n * c * sizeof *experts);
}

kg_status kg_traj_append(struct kg_traj *t, const int32_t *tokens, size_t n,
                         enum kg_source source, struct kg_err *err)
{
    assert(source < KG_SOURCE_COUNT && source != KG_SOURCE_MODEL);
    if (n == 0)
        return KG_OK;
    if (n > MAX_TOKENS - t->n)
        return kg_fail(
            err, KG_ENOMEM,
            "expected a trajectory of at most %d tokens, found %zu more than %zu",
            MAX_TOKENS, n, t->n);
    KG_TRY(reserve(t, t->n + n, err));
    memcpy(t->tokens + t->n, tokens, n * sizeof *tokens);
    memset(t->source + t->n, source, n);
    /* other records of these positions keep the zeros of their allocation */
    choose(t, n);
    t->n += n;
    if (source == KG_SOURCE_PROMPT)
        t->prompt_n += n;
    return KG_OK;
}

kg_status kg_traj_keep(struct kg_traj *t, size_t j, const struct kg_idset *kept,
                       struct kg_err *err)
{
    if (kept->n == 0)
        return KG_OK;
    /* allocated with the first set */
    size_t reached = 0;

    if (!t->kept_n)
        KG_TRY(grow(&t->kept_n, &reached, 0, t->capacity, sizeof *t->kept_n, err));
    if (!t->kept_bytes)
        KG_TRY(
            grow(&t->kept_bytes, &reached, 0, t->capacity, sizeof *t->kept_bytes, err));
    KG_TRY(kg_mem_grow(&t->kept, &t->kept_capacity, t->kept_total + kept->bytes, 1,
                       max_kept, "kept ids", err));
    memcpy(t->kept + t->kept_total, kept->data, kept->bytes);
    t->kept_n[j] = kept->n;
    t->kept_bytes[j] = kept->bytes;
    t->kept_total += kept->bytes;
    t->kept_bound = kept->bound;
    return KG_OK;
}

struct kg_idset kg_traj_kept(const struct kg_traj *t, size_t j, size_t *at)
{
    struct kg_idset s = {.bound = t->kept_bound};

    if (!t->kept_bytes)
        return s;
    s.data = t->kept + *at;
    s.bytes = t->kept_bytes[j];
    s.n = t->kept_n[j];
    *at += s.bytes;
    return s;
}

kg_status kg_traj_push(struct kg_traj *t, const struct kg_traj_step *step,
                       struct kg_err *err)
{
    size_t k = (size_t)t->top_k;

    KG_TRY(reserve(t, t->n + 1, err));
    KG_TRY(kg_traj_keep(t, t->n, &step->kept, err));
    t->tokens[t->n] = step->token;
    t->source[t->n] = KG_SOURCE_MODEL;
    t->logp[t->n] = step->logp;
    choose(t, 1);
    t->cut_n += step->cut > 0;
    t->cut_nats += (double)step->cut;
    if (k > 0) {
        memcpy(t->top_ids + t->n * k, step->top_ids, k * sizeof *step->top_ids);
        memcpy(t->top_logp + t->n * k, step->top_logp, k * sizeof *step->top_logp);
    }
    t->n++;
    return KG_OK;
}

kg_status kg_traj_extend(struct kg_traj *t, const struct kg_traj *from, size_t begin,
                         size_t end, struct kg_err *err)
{
    const size_t k = (size_t)from->top_k;
    size_t behind = 0;

    assert(t->top_k == from->top_k && t->choices == 0 && from->choices == 0);
    for (size_t j = 0; j < end; j++) {
        const struct kg_traj_step step = {.token = from->tokens[j],
                                          .logp = from->logp[j],
                                          .top_ids = k ? from->top_ids + j * k : NULL,
                                          .top_logp = k ? from->top_logp + j * k : NULL,
                                          .kept = kg_traj_kept(from, j, &behind)};

        if (j >= begin && from->source[j] == KG_SOURCE_MODEL)
            KG_TRY(kg_traj_push(t, &step, err));
        else if (j >= begin)
            KG_TRY(kg_traj_append(t, &step.token, 1, KG_SOURCE_TOOL, err));
    }
    return KG_OK;
}

size_t kg_traj_model_tokens(const struct kg_traj *t)
{
    size_t count = 0;

    for (size_t i = 0; i < t->n; i++)
        count += t->source[i] == KG_SOURCE_MODEL;
    return count;
}

/* ---- windows ---- */

kg_status kg_traj_open_window(struct kg_traj *t, size_t from, struct kg_err *err)
{
    assert(from > 0 && from < t->n);
    KG_TRY(kg_mem_grow(&t->windows, &t->windows_capacity, t->n_windows + 1,
                       sizeof *t->windows, MAX_TOKENS, "windows of an episode", err));
    t->windows[t->n_windows++] = (struct kg_traj_window){t->n, from};
    return KG_OK;
}

kg_status kg_traj_set_version(struct kg_traj *t, size_t begin, int64_t version,
                              struct kg_err *err)
{
    if (t->n_versions > 0 && t->versions[t->n_versions - 1].version == version)
        return KG_OK;
    KG_TRY(kg_mem_grow(&t->versions, &t->versions_capacity, t->n_versions + 1,
                       sizeof *t->versions, MAX_TOKENS, "versions of a completion", err));
    t->versions[t->n_versions++] = (struct kg_traj_version){begin, version};
    return KG_OK;
}

size_t kg_traj_n_parts(const struct kg_traj *t, bool whole)
{
    if (t->n == t->prompt_n) /* nothing was sampled, so nothing is computed */
        return 0;
    return whole ? 1 : 1 + t->n_windows;
}

struct kg_traj_part kg_traj_part(const struct kg_traj *t, size_t i, bool whole)
{
    struct kg_traj_part p = {.begin = t->prompt_n, .end = t->n};

    if (whole || t->n_windows == 0)
        return p;
    if (i > 0)
        p = (struct kg_traj_part){t->windows[i - 1].from, t->windows[i - 1].begin, t->n};
    if (i < t->n_windows)
        p.end = t->windows[i].begin;
    while (p.end > p.begin && t->source[p.end - 1] != KG_SOURCE_MODEL)
        p.end--; /* the observation is read by the next part */
    return p;
}

size_t kg_traj_span(const struct kg_traj *t, bool whole)
{
    size_t sum = 0;

    for (size_t i = 0; i < kg_traj_n_parts(t, whole); i++) {
        struct kg_traj_part p = kg_traj_part(t, i, whole);

        sum += p.end - p.from;
    }
    return sum;
}

/* ---- the dump ---- */

static kg_status put_optional(struct kg_str *out, const char *key, const double *x,
                              struct kg_err *err)
{
    KG_TRY(kg_str_printf(out, err, ",\"%s\":", key));
    return kg_json_put_cell(out, x ? *x : NAN, err);
}

char kg_source_letter(enum kg_source source)
{
    static const char letters[KG_SOURCE_COUNT] = {'p', 'm', 't'};

    return letters[source];
}

/* Recorded log-probs of the MODEL tokens, or those in of_model in their order; others are
 * null. */
static kg_status put_logps(struct kg_str *out, const char *key, const struct kg_traj *t,
                           const double *of_model, struct kg_err *err)
{
    KG_TRY(kg_str_printf(out, err, ",\"%s\":[", key));
    for (size_t i = 0; i < t->n; i++) {
        float logp = 0;

        if (i > 0)
            KG_TRY(kg_str_putc(out, ',', err));
        if (t->source[i] == KG_SOURCE_MODEL)
            logp = of_model ? (float)*of_model++ : t->logp[i];
        if (t->source[i] == KG_SOURCE_MODEL && isfinite(logp))
            KG_TRY(kg_json_put_float(out, logp, err));
        else
            KG_TRY(kg_str_puts(out, "null", err));
    }
    return kg_str_putc(out, ']', err);
}

static kg_status put_experts(struct kg_str *out, const struct kg_traj *t,
                             struct kg_err *err)
{
    size_t c = (size_t)t->choices;

    if (c == 0)
        return KG_OK;
    KG_TRY(kg_str_puts(out, ",\"experts\":[", err));
    for (size_t i = 0; i < t->n * c; i++) {
        bool first = i % c == 0, last = i % c == c - 1;
        bool none = t->experts[i / c * c] == KG_TRAJ_CHOOSES;

        if (none && first)
            KG_TRY(kg_str_puts(out, i > 0 ? ",null" : "null", err));
        if (!none)
            KG_TRY(kg_str_printf(out, err, "%s%s%d%s", i > 0 ? "," : "", first ? "[" : "",
                                 (int)t->experts[i], last ? "]" : ""));
    }
    return kg_str_putc(out, ']', err);
}

static kg_status put_episode(struct kg_str *out, const struct kg_traj_episode *e,
                             struct kg_err *err)
{
    if (e->turns == 0)
        return KG_OK;
    return kg_str_printf(out, err,
                         ",\"turns\":%d,\"calls\":%d,\"invalid\":%d,\"failed\":%d,"
                         "\"answered\":%s,\"cut\":%s",
                         (int)e->turns, (int)e->calls, (int)e->invalid, (int)e->failed,
                         e->answered ? "true" : "false", e->cut ? "true" : "false");
}

static kg_status put_windows(struct kg_str *out, const struct kg_traj *t,
                             struct kg_err *err)
{
    if (t->episode.turns == 0)
        return KG_OK;
    KG_TRY(kg_str_puts(out, ",\"windows\":[", err));
    for (size_t i = 0; i < t->n_windows; i++)
        KG_TRY(kg_str_printf(out, err, "%s[%zu,%zu]", i ? "," : "", t->windows[i].begin,
                             t->windows[i].from));
    return kg_str_putc(out, ']', err);
}

static kg_status put_versions(struct kg_str *out, const struct kg_traj *t,
                              struct kg_err *err)
{
    if (t->n_versions == 0)
        return KG_OK;
    KG_TRY(kg_str_puts(out, ",\"versions\":", err));
    for (size_t i = 0; i < t->n_versions; i++)
        KG_TRY(kg_str_printf(out, err, "%c[%zu,%lld]", i ? ',' : '[',
                             t->versions[i].begin, (long long)t->versions[i].version));
    return kg_str_putc(out, ']', err);
}

static kg_status put_parts(struct kg_str *out, const struct kg_traj *t,
                           const struct kg_traj_notes *notes, struct kg_err *err)
{
    if (t->n_parts == 0)
        return KG_OK;
    KG_TRY(kg_str_puts(out, ",\"rewards\":", err));
    for (int k = 0; k < t->n_parts; k++) {
        KG_TRY(kg_str_printf(out, err, "%c\"%s\":", k ? ',' : '{', notes->part_names[k]));
        KG_TRY(isnan(t->part[k]) ? kg_str_puts(out, "null", err)
                                 : kg_json_put_double(out, t->part[k], err));
    }
    return kg_str_putc(out, '}', err);
}

static kg_status put_further(struct kg_str *out, const struct kg_traj *t,
                             const struct kg_traj_notes *notes, struct kg_err *err)
{
    if (!notes->further || notes->further_mask == 0)
        return KG_OK;
    KG_TRY(kg_str_puts(out, ",\"further\":", err));
    return kg_further_put_json(out, &t->further, notes->further, notes->further_mask,
                               err);
}

kg_status kg_traj_put_json(struct kg_str *out, const struct kg_traj *t,
                           const struct kg_traj_notes *notes, struct kg_err *err)
{
    KG_TRY(kg_str_printf(
        out, err, "{\"prompt_index\":%lld,\"draw\":%llu,\"sample\":%d,\"finish\":\"%s\"",
        (long long)t->prompt_index, (unsigned long long)t->draw, (int)t->sample,
        kg_finish_name(t->finish)));
    KG_TRY(put_optional(out, "reward", t->graded ? &t->reward : NULL, err));
    KG_TRY(kg_str_printf(out, err, ",\"graded\":%s", t->graded ? "true" : "false"));
    KG_TRY(put_optional(out, "advantage", notes->advantage, err));
    KG_TRY(put_optional(out, "shaping", &t->shaping, err));
    KG_TRY(put_parts(out, t, notes, err));
    KG_TRY(put_further(out, t, notes, err));
    KG_TRY(kg_str_puts(out, ",\"temperature\":", err));
    KG_TRY(kg_json_put_float(out, t->temperature, err));
    KG_TRY(kg_str_printf(out, err, ",\"prompt_n\":%zu,\"tokens\":", t->prompt_n));
    KG_TRY(kg_json_put_ints(out, t->tokens, t->n, err));
    KG_TRY(kg_str_puts(out, ",\"source\":\"", err));
    for (size_t i = 0; i < t->n; i++)
        KG_TRY(kg_str_putc(out, kg_source_letter(t->source[i]), err));
    KG_TRY(kg_str_putc(out, '"', err));
    KG_TRY(put_logps(out, "logp", t, NULL, err));
    KG_TRY(put_experts(out, t, err));
    if (notes->anchor_logp)
        KG_TRY(put_logps(out, "anchor_logp", t, notes->anchor_logp, err));
    KG_TRY(put_episode(out, &t->episode, err));
    KG_TRY(put_windows(out, t, err));
    KG_TRY(put_versions(out, t, err));
    if (notes->text) {
        KG_TRY(kg_str_puts(out, ",\"text\":", err));
        KG_TRY(kg_json_put_string(out, kg_str_text(notes->text), notes->text->len, err));
    }
    return kg_str_puts(out, "}\n", err);
}

/* ---- additional numbers ---- */

kg_status kg_further_find(int *k, struct kg_further_names *names, const char *name,
                          struct kg_err *err)
{
    size_t n = strlen(name);

    assert(n < KG_FURTHER_NAME);
    for (*k = 0; *k < names->n; ++*k)
        if (strcmp(names->name[*k], name) == 0)
            return KG_OK;
    if (*k == KG_FURTHER)
        return kg_fail(err, KG_EFORMAT,
                       "expected at most %d names of numbers besides the score, found "
                       "one more, '%s'",
                       KG_FURTHER, name);
    memcpy(names->name[names->n++], name, n + 1);
    return KG_OK;
}

void kg_further_order(int order[KG_FURTHER], const struct kg_further_names *names)
{
    for (int k = 0; k < names->n; k++) {
        int at = k;

        for (; at > 0 && strcmp(names->name[order[at - 1]], names->name[k]) > 0; at--)
            order[at] = order[at - 1];
        order[at] = k;
    }
}

kg_status kg_further_put_json(struct kg_str *out, const struct kg_further *f,
                              const struct kg_further_names *names, uint32_t mask,
                              struct kg_err *err)
{
    int order[KG_FURTHER];
    const char *before = "{";

    kg_further_order(order, names);
    for (int i = 0; i < names->n; i++) {
        int k = order[i];

        if (!(mask >> k & 1))
            continue;
        KG_TRY(kg_str_printf(out, err, "%s\"%s\":", before, names->name[k]));
        KG_TRY(kg_json_put_cell(out, f->said >> k & 1 ? f->x[k] : NAN, err));
        before = ",";
    }
    return kg_str_puts(out, *before == '{' ? "{}" : "}", err);
}

/* Packed trajectories: the struct, then its arrays in the order of one table.
 *
 * In the struct, pointers are written as 0 (no array) or 1, and capacities as the numbers
 * in use, so that equal trajectories have equal bytes.
 */

enum { TOKENS, TOP, CHOICES, KEPT, WINDOWS, VERSIONS, COUNTS };
struct array {
    size_t field, size;
    int count;
};
#define ARRAY(name, count)                                                               \
    {                                                                                    \
        offsetof(struct kg_traj, name), sizeof *((struct kg_traj *)0)->name, (count)     \
    }
static const struct array arrays[] = {
    ARRAY(tokens, TOKENS),     ARRAY(source, TOKENS),     ARRAY(logp, TOKENS),
    ARRAY(top_ids, TOP),       ARRAY(top_logp, TOP),      ARRAY(kept_n, TOKENS),
    ARRAY(kept_bytes, TOKENS), ARRAY(kept, KEPT),         ARRAY(windows, WINDOWS),
    ARRAY(experts, CHOICES),   ARRAY(versions, VERSIONS),
};
enum { N_ARRAYS = sizeof arrays / sizeof *arrays };

static void count_all(size_t counts[COUNTS], const struct kg_traj *t)
{
    counts[TOKENS] = t->n;
    counts[TOP] = t->n * (size_t)t->top_k;
    counts[CHOICES] = t->n * (size_t)t->choices;
    counts[KEPT] = t->kept_total;
    counts[WINDOWS] = t->n_windows;
    counts[VERSIONS] = t->n_versions;
}

static void *pointer(const struct kg_traj *t, const struct array *a)
{
    void *p;

    memcpy(&p, (const char *)t + a->field, sizeof p);
    return p;
}

static void point(struct kg_traj *t, const struct array *a, void *p)
{
    memcpy((char *)t + a->field, &p, sizeof p);
}

kg_status kg_traj_pack(struct kg_str *out, const struct kg_traj *t, struct kg_err *err)
{
    size_t counts[COUNTS];
    struct kg_traj head;

    count_all(counts, t);
    memcpy(&head, t, sizeof head);
    head.capacity = head.n;
    head.kept_capacity = head.kept_total;
    head.windows_capacity = head.n_windows;
    head.versions_capacity = head.n_versions;
    for (size_t i = 0; i < N_ARRAYS; i++)
        point(&head, &arrays[i], (void *)(uintptr_t)(pointer(t, &arrays[i]) != NULL));
    KG_TRY(kg_str_append(out, &head, sizeof head, err));
    for (size_t i = 0; i < N_ARRAYS; i++)
        if (pointer(t, &arrays[i]) && counts[arrays[i].count] > 0)
            KG_TRY(kg_str_append(out, pointer(t, &arrays[i]),
                                 counts[arrays[i].count] * arrays[i].size, err));
    return KG_OK;
}

kg_status kg_traj_bytes_take(void *to, struct kg_traj_bytes *from, size_t n,
                             struct kg_err *err)
{
    if (n > from->left)
        return kg_fail(err, KG_EFORMAT,
                       "trajectories: expected %zu more bytes, found %zu", n, from->left);
    if (n > 0)
        memcpy(to, from->at, n);
    from->at += n;
    from->left -= n;
    return KG_OK;
}

kg_status kg_traj_unpack(struct kg_traj *t, struct kg_traj_bytes *from,
                         struct kg_err *err)
{
    struct kg_traj head;
    size_t counts[COUNTS];

    KG_TRY(kg_traj_bytes_take(&head, from, sizeof head, err));
    count_all(counts, &head);
    memcpy(t, &head, sizeof *t);
    for (size_t i = 0; i < N_ARRAYS; i++)
        point(t, &arrays[i], NULL);
    for (size_t i = 0; i < N_ARRAYS; i++) {
        const struct array *a = &arrays[i];
        size_t n = counts[a->count];

        if (!pointer(&head, a) || n == 0)
            continue;
        if (n > from->left / a->size)
            return kg_fail(err, KG_EFORMAT,
                           "trajectories: expected %zu elements of %zu bytes, found %zu "
                           "bytes",
                           n, a->size, from->left);
        void *p = kg_mem_calloc(n, a->size, "trajectory", err);
        if (!p)
            return err->code;
        point(t, a, p);
        KG_TRY(kg_traj_bytes_take(p, from, n * a->size, err));
    }
    return KG_OK;
}
