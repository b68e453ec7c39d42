/* The search agent: Search-R1's protocol of turns.
 *
 * <search> query </search> is answered by passages between <information> tags, a legal
 * <answer> ends the episode, anything else gets the remark of a wording. The last turn
 * retrieves nothing. If the retriever stays down, the run stops, or the model gets an
 * error and the failure is counted, as the options say.
 *
 * Passages are written as Search-R1 writes them:  Doc 1(Title: first line) other lines
 */
#include "base/mem.h"
#include "task/env_internal.h"
#include "task/wording.h"

#include <string.h>

struct search {
    struct kg_env_source source; /* self owned */
    bool stop_when_down;
    const struct kg_wording *words;
    struct kg_str observation; /* of the current delivery */
    int64_t calls;
    int64_t failed;
    /* of the current poll */
    kg_env_deliver_fn deliver;
    void *user;
};

kg_status kg_env_search_create(void **state, const struct kg_env_source *source,
                               const struct kg_env_opts *opts, struct kg_err *err)
{
    struct search *s = kg_mem_calloc(1, sizeof *s, "search environment", err);

    if (!s || kg_wording_find(&s->words, opts->wording, err) != KG_OK) {
        kg_mem_free(s);
        source->close(source->self);
        return err->code;
    }
    s->source = *source;
    s->stop_when_down = opts->stop_when_down;
    *state = s;
    return KG_OK;
}

void kg_env_search_close(void *state)
{
    struct search *s = state;

    if (!s)
        return;
    s->source.close(s->source.self);
    kg_str_release(&s->observation);
    kg_mem_free(s);
}

/* ---- a turn ---- */

kg_status kg_env_search_step(struct kg_env_result *result, struct kg_str *observation,
                             void *state, const struct kg_env_turn *turn,
                             struct kg_err *err)
{
    struct search *s = state;
    struct kg_action action;

    KG_TRY(kg_env_read_turn(result, &action, observation, &kg_search_tags, "query",
                            s->words->remark, turn, err));
    if (!result->called)
        return KG_OK;
    result->next = KG_ENV_WAIT;
    s->calls++;
    return s->source.ask(s->source.self, action.text, action.n, turn->episode, err);
}

/* ---- observations ---- */

static kg_status put_passage(struct kg_str *out, size_t i, const char *contents,
                             struct kg_err *err)
{
    const char *rest = strchr(contents, '\n');
    size_t title = rest ? (size_t)(rest - contents) : strlen(contents);

    KG_TRY(kg_str_printf(out, err, "Doc %zu(Title: ", i + 1));
    KG_TRY(kg_str_append(out, contents, title, err));
    KG_TRY(kg_str_puts(out, ") ", err));
    KG_TRY(kg_str_puts(out, rest ? rest + 1 : "", err));
    return kg_str_putc(out, '\n', err);
}

static kg_status put_passages(struct kg_str *out, const struct kg_retrieved *a,
                              struct kg_err *err)
{
    size_t from = out->len;
    size_t n;

    if (a->failed)
        return kg_str_puts(out, "The search failed: no passage could be fetched.", err);
    if (a->n == 0)
        return kg_str_puts(out, "No passage was found.", err);
    for (size_t i = 0; i < a->n; i++)
        KG_TRY(put_passage(out, i, a->passages[i].contents, err));
    /* the last line ends at the closing tag */
    kg_text_trim(&n, out->data + from, out->len - from);
    out->len = from + n;
    out->data[out->len] = 0;
    return KG_OK;
}

static kg_status put_observation(struct kg_str *out, const struct kg_retrieved *a,
                                 struct kg_err *err)
{
    kg_str_clear(out);
    KG_TRY(kg_str_printf(out, err, "\n\n%s", kg_information_tags.open));
    KG_TRY(put_passages(out, a, err));
    return kg_str_printf(out, err, "%s\n\n", kg_information_tags.close);
}

static kg_status on_answer(void *user, const struct kg_retrieved *a, struct kg_err *err)
{
    struct search *s = user;
    struct kg_env_delivery d = {.episode = a->ticket, .failed = a->failed};

    if (a->failed && s->stop_when_down)
        return kg_fail(err, KG_EIO, "search: the retriever failed: %s",
                       a->reason ? a->reason : "no reason given");
    s->failed += a->failed;
    KG_TRY(put_observation(&s->observation, a, err));
    d.observation = kg_str_text(&s->observation);
    d.n = s->observation.len;
    return s->deliver(s->user, &d, err);
}

kg_status kg_env_search_poll(void *state, int timeout_ms, kg_env_deliver_fn deliver,
                             void *user, struct kg_err *err)
{
    struct search *s = state;

    s->deliver = deliver;
    s->user = user;
    return s->source.poll(s->source.self, timeout_ms, on_answer, s, err);
}

void kg_env_search_stats(struct kg_env_stats *out, const void *state)
{
    const struct search *s = state;
    struct kg_retriever_stats r;

    s->source.stats(&r, s->source.self);
    *out = (struct kg_env_stats){
        .calls = s->calls,
        .requests = r.requests,
        .cached = r.cached + r.joined,
        .retries = r.retries,
        .failed = s->failed,
        .seconds = r.seconds,
    };
}
