/* Hashes are compared first; facts are sent only if hashes differ. */
#include "ranks/same.h"

#include "base/hash.h"
#include "base/mem.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

kg_status kg_ranks_fact(struct kg_str *facts, const char *name, const char *value,
                        struct kg_err *err)
{
    return kg_str_printf(facts, err, "%s\t%s\n", name, value);
}

/* ---- one difference ---- */

struct fact {
    const char *name, *value;
    size_t name_n, value_n;
};

/* Reads the line at *text and moves *text after it; false: no line is left. */
static bool next(struct fact *f, const char **text)
{
    const size_t n = strcspn(*text, "\n"), name = strcspn(*text, "\t\n");

    if (n == 0)
        return false;
    *f = (struct fact){*text, *text + name + (name < n), name, n - name - (name < n)};
    *text += n + ((*text)[n] == '\n');
    return true;
}

/* The fact of the same name; its value is NULL if there is none. */
static struct fact find(const char *text, const struct fact *named)
{
    struct fact f;

    while (next(&f, &text))
        if (f.name_n == named->name_n && memcmp(f.name, named->name, f.name_n) == 0)
            return f;
    return (struct fact){named->name, NULL, named->name_n, 0};
}

static bool same(const struct fact *a, const struct fact *b)
{
    return a->value && b->value && a->value_n == b->value_n &&
           memcmp(a->value, b->value, a->value_n) == 0;
}

enum { SHOWN = 200, BEFORE = 40 };

/* Shows a value; of a long value, the part where the two begin to differ. */
static void show(char text[SHOWN + 16], const struct fact *f, const struct fact *other)
{
    size_t at = 0;

    if (!f->value) {
        strcpy(text, "none");
        return;
    }
    while (at < f->value_n && at < other->value_n && f->value[at] == other->value[at])
        at++;
    at = f->value_n > SHOWN && at > BEFORE ? at - BEFORE : 0;
    snprintf(text, SHOWN + 16, "%s%.*s%s", at > 0 ? ".." : "",
             (int)(f->value_n - at < SHOWN ? f->value_n - at : SHOWN), f->value + at,
             f->value_n - at > SHOWN ? ".." : "");
}

static kg_status differ(const struct fact *own, const struct fact *first,
                        struct kg_err *err)
{
    char here[SHOWN + 16], there[SHOWN + 16];

    show(here, own, first);
    show(there, first, own);
    return kg_fail(err, KG_ECONFLICT,
                   "%.*s is %s, rank 0 has %s; expected the same on every rank",
                   (int)own->name_n, own->name, here, there);
}

/* first: facts of rank 0 */
static kg_status compare(const char *own, const char *first, struct kg_err *err)
{
    const char *rest = own;
    struct fact mine, theirs;

    while (next(&mine, &rest)) {
        theirs = find(first, &mine);
        if (!same(&mine, &theirs))
            return differ(&mine, &theirs, err);
    }
    for (rest = first; next(&theirs, &rest);) {
        mine = find(own, &theirs);
        if (!same(&mine, &theirs))
            return differ(&mine, &theirs, err);
    }
    return KG_OK;
}

/* ---- over ranks ---- */

struct sum {
    uint64_t hash, bytes;
};

static kg_status gather_sums(struct sum *first, bool *alike, struct kg_ranks *r,
                             kg_status made, const struct kg_str *facts, const char *what,
                             struct kg_err *err)
{
    const struct sum own = {kg_hash_bytes(facts->data, facts->len), facts->len};
    struct sum *all;
    kg_status status = kg_ranks_gather_own(&all, r, made, &own, sizeof own, what, err);

    *alike = true;
    for (int p = 1; p < r->n && status == KG_OK; p++)
        *alike = *alike && memcmp(&all[p], &all[0], sizeof *all) == 0;
    if (status == KG_OK)
        *first = all[0];
    kg_mem_free(all);
    return status;
}

static kg_status name_difference(struct kg_ranks *r, struct sum sum,
                                 const struct kg_str *facts, const char *what,
                                 struct kg_err *err)
{
    char *first = kg_mem_calloc((size_t)sum.bytes + 1, 1, what, err);
    kg_status status = kg_ranks_agree(r, first ? KG_OK : err->code, what, err);

    if (status == KG_OK && r->me == 0)
        memcpy(first, facts->data, facts->len);
    if (status == KG_OK)
        status = kg_ranks_share(r, first, (size_t)sum.bytes, what, err);
    if (status == KG_OK)
        status = kg_ranks_agree(r, compare(kg_str_text(facts), first, err), what, err);
    kg_mem_free(first);
    return status;
}

kg_status kg_ranks_check_same(struct kg_ranks *r, kg_status made,
                              const struct kg_str *facts, const char *what,
                              struct kg_err *err)
{
    struct sum first = {0};
    bool alike;

    if (r->n < 2)
        return made;
    KG_TRY(gather_sums(&first, &alike, r, made, facts, what, err));
    kg_status status = alike ? KG_OK : name_difference(r, first, facts, what, err);
    r->unlike |= status == KG_ECONFLICT;
    return status;
}
