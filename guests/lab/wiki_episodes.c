/* Scripted episodes in a real environment, for SFT. A model that has never searched gets
 * no reward, so SFT first shows it how. A script is a row of a table: queries and answer.
 * Observations are written by the environment that training uses. Some scripts are faulty
 * on purpose, by a weight: they stop early or search for another name, so that SFT
 * teaches the form of an episode and RL still has something to learn. */
#include "lab/wiki_internal.h"

#include "base/file.h"
#include "data/json.h"

#include <stdio.h>
#include <string.h>

enum { SEARCHES = 2, WAIT_MS = 1000, RATE_STEPS = 1 << 30 };

enum who { NOBODY, ASKED, BRIDGE, GOLD, OTHER, STRANGER, STRANGERS_PLACE };

/* Most faulty episodes about works stop early; most about people do not. So the most
 * likely action, which greedy decoding takes, is right for one kind of question only. */
static const struct way {
    const char *name;
    int about_work, about_person; /* weights among faulty episodes */
    enum who search[SEARCHES];
    enum who answer;
} ways[KG_WIKI_WAYS] = {
    {"right", 0, 0, {ASKED, BRIDGE}, GOLD},
    {"early", 80, 30, {ASKED}, BRIDGE},
    {"misread", 10, 40, {ASKED, BRIDGE}, OTHER},
    {"again", 4, 20, {ASKED, ASKED}, BRIDGE},
    {"astray", 3, 5, {STRANGER}, STRANGERS_PLACE},
    {"guess", 3, 5, {NOBODY}, STRANGER},
};
enum { WEIGHTS = 100 };

static int choose_way(const struct kg_wiki *w, const struct kg_wiki_question *q,
                      int64_t i, double fault_rate)
{
    if ((double)kg_wiki_draw(w, KG_WIKI_DRAW_FAULTY, i, KG_WIKI_TRAIN, RATE_STEPS) >=
        fault_rate * RATE_STEPS)
        return 0;
    int64_t left = (int64_t)kg_wiki_draw(w, KG_WIKI_DRAW_WAY, i, KG_WIKI_TRAIN, WEIGHTS);
    for (int k = 1; k + 1 < KG_WIKI_WAYS; k++) {
        left -= q->about_work ? ways[k].about_work : ways[k].about_person;
        if (left < 0)
            return k;
    }
    return KG_WIKI_WAYS - 1;
}

/* An episode in progress. */
struct episode {
    const struct kg_wiki *w;
    const struct kg_wiki_play *play;
    struct kg_wiki_question q;
    int64_t number, stranger, strangers_place;
    int turn;
    struct kg_str observation;
    bool arrived;
};

static int64_t name_of(const struct episode *e, enum who who)
{
    const int64_t names[] = {
        [ASKED] = e->q.asked,     [BRIDGE] = e->q.bridge,
        [GOLD] = e->q.answer,     [OTHER] = e->q.other,
        [STRANGER] = e->stranger, [STRANGERS_PLACE] = e->strangers_place};

    return names[who];
}

static kg_status keep_observation(void *user, const struct kg_env_delivery *d,
                                  struct kg_err *err)
{
    struct episode *e = user;

    if (d->failed)
        return kg_fail(err, KG_EIO, "expected passages, found a search that failed");
    e->arrived = true;
    return kg_str_append(&e->observation, d->observation, d->n, err);
}

/* Plays a turn in the environment.   e->observation: the reply */
static kg_status act(struct episode *e, const char *text, struct kg_err *err)
{
    static const struct kg_record nothing = {.line = 0};
    struct kg_env_turn turn = {.episode = (uint64_t)e->number,
                               .record = &nothing,
                               .text = text,
                               .n = strlen(text),
                               .turn = e->turn++};
    struct kg_env_result result = {.valid = false};

    kg_str_clear(&e->observation);
    e->arrived = false;
    KG_TRY(e->play->row->step(&result, &e->observation, e->play->env, &turn, err));
    if (result.next == KG_ENV_DONE || !result.valid)
        return kg_fail(err, KG_EFORMAT,
                       "expected an environment that answers '%.40s', found %s", text,
                       result.valid ? "the end of the episode" : "an invalid action");
    while (result.next == KG_ENV_WAIT && !e->arrived)
        KG_TRY(e->play->row->poll(e->play->env, WAIT_MS, keep_observation, e, err));
    return KG_OK;
}

/* ---- writing ---- */

static kg_status put_segment(struct kg_str *out, const char *source, const char *text,
                             size_t n, struct kg_err *err)
{
    KG_TRY(kg_str_printf(out, err, "{\"source\": \"%s\", \"text\": ", source));
    KG_TRY(kg_json_put_string(out, text, n, err));
    return kg_str_putc(out, '}', err);
}

/* A search for a name must find the passage that mentions the next name of the script; in
 * an index of another world it does not. */
static kg_status check_found(const struct episode *e, enum who who, const char *searched,
                             struct kg_err *err)
{
    const enum who says = who == ASKED ? BRIDGE : who == BRIDGE ? GOLD : STRANGERS_PLACE;
    char name[KG_WIKI_NAME];

    kg_wiki_name(name, e->w, name_of(e, says));
    if (strstr(kg_str_text(&e->observation), name))
        return KG_OK;
    return kg_fail(err, KG_EFORMAT,
                   "expected a search for '%s' to find a passage with '%s', found none: "
                   "the index is not of this world's corpus, or --topk is too small",
                   searched, name);
}

static kg_status put_search(struct kg_str *out, struct episode *e, enum who who,
                            struct kg_err *err)
{
    char name[KG_WIKI_NAME], text[32];

    kg_wiki_name(name, e->w, name_of(e, who));
    snprintf(text, sizeof text, "<search> %s</search>", name);
    KG_TRY(act(e, text, err));
    KG_TRY(check_found(e, who, name, err));
    KG_TRY(put_segment(out, "model", text, strlen(text), err));
    KG_TRY(kg_str_puts(out, ", ", err));
    KG_TRY(
        put_segment(out, "tool", kg_str_text(&e->observation), e->observation.len, err));
    return kg_str_puts(out, ", ", err);
}

static kg_status put_answer(struct kg_str *out, const struct episode *e, enum who who,
                            struct kg_err *err)
{
    char name[KG_WIKI_NAME], text[32];

    kg_wiki_name(name, e->w, name_of(e, who));
    snprintf(text, sizeof text, "<answer> %s</answer>", name);
    return put_segment(out, "model", text, strlen(text), err);
}

static kg_status put_episode(struct kg_str *out, struct episode *e, const struct way *way,
                             struct kg_err *err)
{
    e->turn = 0;
    kg_str_clear(&e->observation);
    char name[KG_WIKI_NAME], text[96];

    kg_wiki_name(name, e->w, e->q.asked);
    snprintf(text, sizeof text, e->q.format, name);
    KG_TRY(kg_json_put_text(out, "{\"prompt\": ", text, err));
    KG_TRY(kg_str_puts(out, ", \"segments\": [", err));
    for (int i = 0; i < SEARCHES && way->search[i] != NOBODY; i++)
        KG_TRY(put_search(out, e, way->search[i], err));
    KG_TRY(put_answer(out, e, way->answer, err));
    return kg_str_printf(out, err, "], \"way\": \"%s\"}\n", way->name);
}

/* ---- all episodes ---- */

static kg_status play_one(struct kg_str *out, struct kg_wiki_played *played,
                          struct episode *e, struct kg_err *err)
{
    struct kg_wiki_counts counts;

    kg_wiki_count(&counts, e->w);
    kg_wiki_question(&e->q, e->w, KG_WIKI_TRAIN,
                     e->number % counts.questions[KG_WIKI_TRAIN]);
    int way = choose_way(e->w, &e->q, e->number, e->play->fault_rate);
    kg_wiki_stranger(&e->stranger, &e->strangers_place, e->w, e->number);
    if (put_episode(out, e, &ways[way], err) != KG_OK)
        return kg_err_prefix(err, "episode %lld", (long long)e->number + 1);
    played->ways[way].n++;
    return KG_OK;
}

kg_status kg_wiki_episodes(struct kg_wiki_played *out, const struct kg_wiki *w,
                           const struct kg_wiki_play *play, const char *path,
                           struct kg_err *err)
{
    struct episode e = {.w = w, .play = play};
    struct kg_file_writer file = {0};
    struct kg_str line = {0};
    kg_status status;

    memset(out, 0, sizeof *out);
    for (int k = 0; k < KG_WIKI_WAYS; k++)
        out->ways[k].name = ways[k].name;
    if (play->count < 1 || play->count > 10000000)
        return kg_fail(err, KG_EINVAL, "expected 1 to 10000000 episodes, found %lld",
                       (long long)play->count);
    if (!(play->fault_rate >= 0 && play->fault_rate <= 1))
        return kg_fail(err, KG_EINVAL, "expected a fault rate of 0..1, found %g",
                       play->fault_rate);
    KG_TRY_GOTO(out, kg_file_writer_open(&file, path, err));
    for (; e.number < play->count; e.number++) {
        kg_str_clear(&line);
        KG_TRY_GOTO(out, play_one(&line, out, &e, err));
        KG_TRY_GOTO(out, kg_file_writer_put(&file, line.data, line.len, err));
    }
    status = kg_file_writer_close(&file, err);
out:
    kg_file_writer_abort(&file);
    kg_str_release(&line);
    kg_str_release(&e.observation);
    return status;
}
