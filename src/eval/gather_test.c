/* Ranks that gather completions but do not agree on how many there are: a rank that gets
 * more or fewer than it has room for reports it, and does not write out of bounds.
 */
#include "eval/gather.h"

#include "base/mem.h"
#include "ranks/ranks_testing.h"

#include <string.h>

/* For each of two ranks: number of all completions, its share, and whether it
 * succeeds. */
struct row {
    struct {
        int64_t n, first, end;
        bool ok;
    } rank[2];
};

static const struct row rows[] = {
    {{{4, 0, 2, true}, {4, 2, 4, true}}},
    {{{4, 0, 4, true}, {4, 4, 4, true}}},
    {{{4, 0, 0, true}, {4, 0, 4, true}}},
    {{{4, 0, 2, false}, {5, 2, 5, true}}}, /* one more than rank 0 has room for */
    {{{4, 0, 2, false}, {40, 20, 40, false}}},
    {{{4, 0, 2, false}, {1000, 2, 1000, true}}},
    {{{5, 0, 3, true}, {4, 2, 4, false}}},  /* one fewer */
    {{{4, 0, 2, false}, {4, 3, 4, false}}}, /* a gap */
    {{{4, 0, 3, false}, {4, 2, 4, false}}}, /* an overlap */
    {{{4, 0, 4, false}, {4, 0, 4, false}}}, /* each has all */
    {{{4, 0, 0, false}, {4, 4, 4, false}}}, /* none has any */
    {{{8, 0, 4, false}, {2, 1, 2, false}}},
    {{{1, 0, 1, true}, {0, 0, 0, false}}},
    {{{2, 0, 1, false}, {2, 0, 2, false}}},
};
enum { ROWS = sizeof rows / sizeof *rows };

static int gather(struct kg_ranks *r, void *user)
{
    const struct row *row = user;
    const size_t n = (size_t)row->rank[r->me].n;
    const struct kg_share mine = {row->rank[r->me].first, row->rank[r->me].end};
    struct kg_err why = {0};
    struct kg_eval_items items = {.n = n};
    kg_status status;

    items.trajs = kg_mem_calloc(n + 1, sizeof *items.trajs, "test", &why);
    items.grades = kg_mem_calloc(n + 1, sizeof *items.grades, "test", &why);
    for (int64_t i = mine.first; i < mine.end; i++)
        items.trajs[i].prompt_index = 7 + i;
    memset(&items.trajs[n], 0x5a, sizeof *items.trajs);
    memset(&items.grades[n], 0x5a, sizeof *items.grades);
    status = kg_eval_gather(&items, mine, NULL, r, &why);
    for (size_t i = 0; i < sizeof *items.trajs; i++)
        if (((char *)&items.trajs[n])[i] != 0x5a)
            return 3;
    for (size_t i = 0; i < sizeof *items.grades; i++)
        if (((char *)&items.grades[n])[i] != 0x5a)
            return 4;
    if (!row->rank[r->me].ok)
        return status == KG_EFORMAT && strstr(why.message, "samples: expected ") ? 0 : 5;
    for (size_t i = 0; i < n && status == KG_OK && row->rank[!r->me].ok; i++)
        if (items.trajs[i].prompt_index != 7 + (int64_t)i)
            return 6;
    return status == KG_OK ? 0 : 7;
}

static void what_has_no_room_is_refused(void **state)
{
    (void)state;
    for (int i = 0; i < ROWS; i++) {
        struct row row = rows[i];
        char when[32];

        snprintf(when, sizeof when, "row %d", i);
        ranks_end_well(2, gather, &row, when);
    }
}

/* Two ranks have 10 names each, 3 of them in common: 17 in all, with room for 16. Each
 * rank must drop the numbers of its 17th name, the other's last, and nothing else. */
static int gather_names(struct kg_ranks *r, void *unused)
{
    struct kg_err why = {0};
    struct kg_further_names names = {0};
    struct kg_traj trajs[2] = {0};
    struct kg_grade grades[2] = {0};
    struct kg_eval_items items = {.n = 2, .trajs = trajs, .grades = grades};
    const struct kg_share mine = {r->me, r->me + 1};
    char name[16];
    int k;

    (void)unused;
    for (int i = 0; i < 10; i++) {
        snprintf(name, sizeof name, "n%d", i < 3 ? i : i + 7 * r->me);
        if (kg_further_find(&k, &names, name, &why) != KG_OK)
            return 3;
        trajs[r->me].further.said |= (uint32_t)1 << k;
        trajs[r->me].further.x[k] = 1 + i + 10 * r->me;
    }
    if (kg_eval_gather(&items, mine, &names, r, &why) != KG_OK)
        return 4;
    for (int i = 0; i < 10; i++) {
        snprintf(name, sizeof name, "n%d", i < 3 ? i : i + 7 * !r->me);
        for (k = 0; k < names.n && strcmp(names.name[k], name) != 0; k++)
            continue;
        if ((k == names.n) != (i == 9))
            return 5;
        if (i < 9 && trajs[!r->me].further.x[k] != 1 + i + 10 * !r->me)
            return 6;
    }
    return trajs[!r->me].further.said >> 16 == 0 ? 0 : 7;
}

/* If names are not exchanged, a number has no name on the other rank and is dropped
 * there. */
static int gather_without_names(struct kg_ranks *r, void *unused)
{
    struct kg_err why = {0};
    struct kg_traj trajs[2] = {0};
    struct kg_eval_items items = {.n = 2, .trajs = trajs};

    (void)unused;
    trajs[r->me].further = (struct kg_further){.said = 6, .x = {0, 1, 2}};
    if (kg_eval_gather(&items, (struct kg_share){r->me, r->me + 1}, NULL, r, &why) !=
        KG_OK)
        return 3;
    return trajs[!r->me].further.said == 0 && trajs[r->me].further.said == 6 ? 0 : 4;
}

static void numbers_without_names_are_dropped(void **state)
{
    (void)state;
    ranks_end_well(2, gather_without_names, NULL, "without names");
}

static void names_beyond_the_last_place_are_dropped(void **state)
{
    (void)state;
    ranks_end_well(2, gather_names, NULL, "names");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_has_no_room_is_refused),
        cmocka_unit_test(names_beyond_the_last_place_are_dropped),
        cmocka_unit_test(numbers_without_names_are_dropped),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
