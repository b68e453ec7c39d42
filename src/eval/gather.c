/* One message per rank: the names of its numbers, then its items in order.
 *
 * Each rank meets the names of graders' numbers in its own order, so an index of a name
 * is valid on that rank only and is translated on arrival. All other data is sent
 * unchanged.
 */
#include "eval/gather.h"

#include "base/log.h"
#include "ranks/ranks.h"

/* ---- shares ---- */

static int64_t count(const struct kg_request *requests, size_t n)
{
    int64_t all = 0;

    for (size_t i = 0; i < n; i++)
        all += requests[i].n_samples;
    return all;
}

struct kg_share kg_eval_share(const struct kg_request *requests, size_t n,
                              const struct kg_ranks *ranks)
{
    if (ranks->n > 1 && n < (size_t)ranks->n)
        return kg_share_of(count(requests, n), ranks->me, ranks->n);
    struct kg_share whole = kg_share_of((int64_t)n, ranks->me, ranks->n);
    return (struct kg_share){count(requests, (size_t)whole.first),
                             count(requests, (size_t)whole.end)};
}

size_t kg_eval_cut_requests(struct kg_request *out, const struct kg_request *requests,
                            size_t n, struct kg_share mine)
{
    int64_t at = 0;
    size_t cut = 0;

    for (size_t i = 0; i < n; i++) {
        int64_t end = at + requests[i].n_samples;
        int64_t from = mine.first > at ? mine.first : at;
        int64_t to = mine.end < end ? mine.end : end;

        if (from < to) {
            out[cut] = requests[i];
            out[cut].first_sample += (int32_t)(from - at);
            out[cut++].n_samples = (int32_t)(to - from);
        }
        at = end;
    }
    return cut;
}

/* ---- a message ---- */

static kg_status put_item(struct kg_str *out, const struct kg_eval_items *items, size_t i,
                          struct kg_err *err)
{
    KG_TRY(kg_traj_pack(out, &items->trajs[i], err));
    if (items->grades)
        KG_TRY(kg_str_append(out, &items->grades[i], sizeof *items->grades, err));
    if (items->answers)
        KG_TRY(kg_str_append(out, &items->answers[i], sizeof *items->answers, err));
    if (!items->texts)
        return KG_OK;
    KG_TRY(kg_str_append(out, &items->texts[i].len, sizeof items->texts[i].len, err));
    return kg_str_append(out, kg_str_text(&items->texts[i]), items->texts[i].len, err);
}

kg_status kg_eval_items_put(struct kg_str *out, const struct kg_eval_items *items,
                            struct kg_share which, const struct kg_further_names *names,
                            struct kg_err *err)
{
    static const struct kg_further_names none;

    KG_TRY(kg_str_append(out, names ? names : &none, sizeof none, err));
    for (int64_t i = which.first; i < which.end; i++)
        KG_TRY(put_item(out, items, (size_t)i, err));
    return KG_OK;
}

static kg_status take_text(struct kg_str *text, struct kg_traj_bytes *from,
                           struct kg_err *err)
{
    size_t n;

    KG_TRY(kg_traj_bytes_take(&n, from, sizeof n, err));
    if (n > from->left)
        return kg_fail(err, KG_EFORMAT, "samples: expected %zu more bytes, found %zu", n,
                       from->left);
    KG_TRY(kg_str_append(text, from->at, n, err));
    from->at += n;
    from->left -= n;
    return KG_OK;
}

/* places[k]: index here of the sender's name k; -1: none, so its number is dropped. */
static void translate(struct kg_further *f, const int places[KG_FURTHER])
{
    struct kg_further here = {0};

    for (int k = 0; k < KG_FURTHER; k++)
        if (f->said >> k & 1 && places[k] >= 0) {
            here.said |= (uint32_t)1 << places[k];
            here.x[places[k]] = f->x[k];
        }
    for (int k = 0; k < KG_FURTHER; k++)
        if (places[k] >= 0)
            here.named |= (f->named >> k & 1) << places[k];
    *f = here;
}

static kg_status take_item(struct kg_eval_items *items, size_t i,
                           struct kg_traj_bytes *from, const int places[KG_FURTHER],
                           struct kg_err *err)
{
    KG_TRY(kg_traj_unpack(&items->trajs[i], from, err));
    translate(&items->trajs[i].further, places);
    if (items->grades) {
        KG_TRY(kg_traj_bytes_take(&items->grades[i], from, sizeof *items->grades, err));
        translate(&items->grades[i].further, places);
    }
    if (items->answers)
        KG_TRY(kg_traj_bytes_take(&items->answers[i], from, sizeof *items->answers, err));
    return items->texts ? take_text(&items->texts[i], from, err) : KG_OK;
}

/* Reads the sender's names; the first name that has no place is logged. */
static kg_status take_names(int places[KG_FURTHER], struct kg_further_names *names,
                            struct kg_traj_bytes *from, struct kg_err *err)
{
    struct kg_further_names theirs;
    struct kg_err full;
    bool dropped = false;

    KG_TRY(kg_traj_bytes_take(&theirs, from, sizeof theirs, err));
    if (theirs.n < 0 || theirs.n > KG_FURTHER)
        return kg_fail(err, KG_EFORMAT, "samples: expected at most %d names, found %d",
                       KG_FURTHER, theirs.n);
    for (int k = 0; k < KG_FURTHER; k++)
        places[k] = -1;
    for (int k = 0; names && k < theirs.n; k++)
        if (kg_further_find(&places[k], names, theirs.name[k], &full) != KG_OK) {
            if (!dropped)
                kg_log_warn("%s, which is dropped", full.message);
            dropped = true;
            places[k] = -1;
        }
    return KG_OK;
}

kg_status kg_eval_items_take(struct kg_eval_items *items, struct kg_further_names *names,
                             struct kg_traj_bytes *from, struct kg_err *err)
{
    int places[KG_FURTHER];

    KG_TRY(take_names(places, names, from, err));
    for (size_t i = 0; i < items->n; i++)
        KG_TRY(take_item(items, i, from, places, err));
    return KG_OK;
}

static kg_status wrong_number(const struct kg_ranks *ranks, int rank, size_t expected,
                              struct kg_err *err)
{
    return kg_fail(err, KG_EFORMAT,
                   "samples: expected %zu by the end of the share of %s, found another "
                   "number: the ranks have different requests",
                   expected, kg_ranks_name(ranks, rank).text);
}

/* Reads the messages of all other ranks in order. */
static kg_status take_all(struct kg_eval_items *items, struct kg_share mine,
                          struct kg_further_names *names, const struct kg_ranks_bytes *m,
                          const struct kg_ranks *ranks, struct kg_err *err)
{
    size_t i = 0;

    for (int r = 0; r < ranks->n; r++) {
        uint64_t begin = r > 0 ? m->ends[r - 1] : 0;
        struct kg_traj_bytes from = {m->bytes + begin, (size_t)(m->ends[r] - begin)};
        int places[KG_FURTHER];

        if (r == ranks->me && i != (size_t)mine.first)
            return wrong_number(ranks, r, (size_t)mine.first, err);
        if (r == ranks->me) {
            i = (size_t)mine.end;
            continue;
        }
        KG_TRY(take_names(places, names, &from, err));
        while (from.left > 0 && i < items->n)
            KG_TRY(take_item(items, i++, &from, places, err));
        if (from.left > 0)
            return wrong_number(ranks, r, items->n, err);
    }
    return i == items->n ? KG_OK : wrong_number(ranks, ranks->n - 1, items->n, err);
}

kg_status kg_eval_gather(struct kg_eval_items *items, struct kg_share mine,
                         struct kg_further_names *names, struct kg_ranks *ranks,
                         struct kg_err *err)
{
    struct kg_str own = {.max = SIZE_MAX / 2};
    struct kg_ranks_bytes all = {0};
    kg_status status;

    if (ranks->n < 2)
        return KG_OK;
    KG_TRY_GOTO(out, kg_eval_items_put(&own, items, mine, names, err));
    KG_TRY_GOTO(out, kg_ranks_bytes_gather(&all, &own, ranks, "samples", err));
    KG_TRY_GOTO(out, take_all(items, mine, names, &all, ranks, err));
    /* numbers that any of these items has */
    uint32_t named = 0;

    for (size_t i = 0; i < items->n; i++)
        named |= items->trajs[i].further.said;
    for (size_t i = 0; i < items->n; i++)
        items->trajs[i].further.named = named;
out:
    kg_ranks_bytes_release(&all);
    kg_str_release(&own);
    return status;
}
