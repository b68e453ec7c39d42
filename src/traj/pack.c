/* The struct as it is, then its arrays in the order of one table.
 *
 * Whether an array is there is said by its pointer in the struct, whose value means
 * nothing to the reader. Capacities become what is used: a trajectory that has travelled
 * has ended.
 */
#include "traj/pack.h"

#include "base/mem.h"

#include <string.h>

enum { TOKENS, TOP, CHOICES, KEPT, WINDOWS, COUNTS };
struct array {
    size_t field, size;
    int count;
};
#define ARRAY(name, count)                                                               \
    {                                                                                    \
        offsetof(struct kg_traj, name), sizeof *((struct kg_traj *)0)->name, (count)     \
    }
static const struct array arrays[] = {
    ARRAY(tokens, TOKENS),     ARRAY(source, TOKENS), ARRAY(logp, TOKENS),
    ARRAY(top_ids, TOP),       ARRAY(top_logp, TOP),  ARRAY(kept_n, TOKENS),
    ARRAY(kept_bytes, TOKENS), ARRAY(kept, KEPT),     ARRAY(windows, WINDOWS),
    ARRAY(experts, CHOICES),
};
enum { N_ARRAYS = sizeof arrays / sizeof *arrays };

static void count_all(size_t counts[COUNTS], const struct kg_traj *t)
{
    counts[TOKENS] = t->n;
    counts[TOP] = t->n * (size_t)t->top_k;
    counts[CHOICES] = t->n * (size_t)t->choices;
    counts[KEPT] = t->kept_total;
    counts[WINDOWS] = t->n_windows;
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

    count_all(counts, t);
    KG_TRY(kg_str_append(out, t, sizeof *t, err));
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
    *t = head;
    t->capacity = head.n;
    t->kept_capacity = head.kept_total;
    t->windows_capacity = head.n_windows;
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
