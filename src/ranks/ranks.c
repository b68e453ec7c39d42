/* All communication of ranks, built from one operation: exchange.
 *
 * A failure of a transport is permanent: no call waits again for a rank that timed out,
 * and no later call replaces the first error.
 */
#include "ranks/ranks.h"

#include "base/clock.h"
#include "base/mem.h"
#include "ranks/message.h"
#include "ranks/nccl.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

void kg_ranks_close(struct kg_ranks *r)
{
    kg_ranks_nccl_close(r);
    if (r->transport && r->transport->close)
        r->transport->close(r);
    kg_mem_free(r->host);
    memset(r, 0, sizeof *r);
}

struct kg_ranks_name kg_ranks_name(const struct kg_ranks *r, int rank)
{
    struct kg_ranks_name name;
    char host[KG_RANKS_HOST] = "";

    if (r->whole)
        return kg_ranks_name(r->whole, r->first + rank);
    if (r->host)
        memcpy(host, r->host[rank], sizeof host);
    else if (rank == r->me && gethostname(host, sizeof host - 1) != 0)
        host[0] = '\0';
    snprintf(name.text, sizeof name.text, host[0] ? "rank %d (%.63s)" : "rank %d", rank,
             host);
    return name;
}

void kg_ranks_forgive(struct kg_ranks *r)
{
    r->told = r->named = false;
    if (r->whole)
        r->whole->named = false;
}

/* ---- the one operation ---- */

/* A failure of a part is a failure of the whole: they share the transport. */
static void lose(struct kg_ranks *r, const struct kg_err *err)
{
    r->lost = true;
    r->unlike |= err->code == KG_ECONFLICT;
    r->broken = *err;
    if (r->whole)
        lose(r->whole, err);
}

/* Memory for messages. Without it this rank cannot communicate any more: the others wait
 * for it until their timeout. */
static void *room(struct kg_ranks *r, size_t n, size_t size, const char *what,
                  struct kg_err *err)
{
    void *p = kg_mem_calloc(n, size, what, err);

    if (!p)
        lose(r, err);
    return p;
}

/* status: of a call that began at `since` (clock seconds) */
static kg_status account(struct kg_ranks *r, kg_status status, double since,
                         const struct kg_err *err)
{
    double *spent = r->agreeing ? &r->clock.waiting : &r->clock.exchange;

    *spent += kg_clock_seconds() - since;
    if (status != KG_OK)
        lose(r, err);
    return status;
}

/* How parts move: lent to a user; exchanged; or (half) begun, if the transport can. */
struct way {
    bool half;
    const struct kg_ranks_user *user;
};

static kg_status carry(const struct kg_ranks *r, struct way way,
                       const struct kg_ranks_part *out, const struct kg_ranks_part *in,
                       const char *what, struct kg_err *err)
{
    const struct kg_ranks_transport *t = r->transport;

    if (way.user)
        return t->lend(r, out, in, way.user, what, err);
    return way.half && t->begin ? t->begin(r, out, in, what, err)
                                : t->exchange(r, out, in, what, err);
}

static kg_status others(struct kg_ranks *r, struct way way, struct kg_ranks_part *out,
                        struct kg_ranks_part *in, const char *what, struct kg_err *err)
{
    double since = kg_clock_seconds();

    if (in[r->me].n > 0)
        memmove(in[r->me].data, out[r->me].data, in[r->me].n);
    out[r->me] = in[r->me] = (struct kg_ranks_part){0};
    for (int p = 0; p < r->n; p++)
        r->sent += out[p].n;
    kg_status status = carry(r, way, out, in, what, err);
    return account(r, status, since, err);
}

static kg_status move_parts(struct kg_ranks *r, struct way way,
                            const struct kg_ranks_part *out,
                            const struct kg_ranks_part *in, const char *what,
                            struct kg_err *err)
{
    size_t n = (size_t)r->n;

    if (r->n < 2)
        return KG_OK;
    if (r->lost) {
        *err = r->broken;
        return err->code;
    }
    struct kg_ranks_part *parts = room(r, 2 * n, sizeof *parts, what, err);
    if (!parts)
        return err->code;
    memcpy(parts, out, n * sizeof *parts);
    memcpy(parts + n, in, n * sizeof *parts);
    kg_status status = others(r, way, parts, parts + n, what, err);
    kg_mem_free(parts);
    return status;
}

kg_status kg_ranks_exchange(struct kg_ranks *r, const struct kg_ranks_part *out,
                            const struct kg_ranks_part *in, const char *what,
                            struct kg_err *err)
{
    return move_parts(r, (struct way){0}, out, in, what, err);
}

kg_status kg_ranks_begin(struct kg_ranks *r, const struct kg_ranks_part *out,
                         const struct kg_ranks_part *in, const char *what,
                         struct kg_err *err)
{
    return move_parts(r, (struct way){.half = true}, out, in, what, err);
}

kg_status kg_ranks_finish(struct kg_ranks *r, const char *what, struct kg_err *err)
{
    double since = kg_clock_seconds();

    if (r->n < 2 || !r->transport->finish)
        return KG_OK;
    if (r->lost) {
        *err = r->broken;
        return err->code;
    }
    return account(r, r->transport->finish(r, what, err), since, err);
}

bool kg_ranks_lends(const struct kg_ranks *r)
{
    return r->n > 1 && r->transport && r->transport->lend;
}

kg_status kg_ranks_lend(struct kg_ranks *r, const struct kg_ranks_part *out, size_t n,
                        const struct kg_ranks_user *user, const char *what,
                        struct kg_err *err)
{
    if (r->n < 2)
        return KG_OK;
    struct kg_ranks_part *in = room(r, (size_t)r->n, sizeof *in, what, err);
    if (!in)
        return err->code;
    for (int p = 0; p < r->n; p++)
        in[p].n = p == r->me ? 0 : n;
    kg_status status = move_parts(r, (struct way){.user = user}, out, in, what, err);
    kg_mem_free(in);
    return status;
}

/* ---- operations built from it ---- */

kg_status kg_ranks_gather(struct kg_ranks *r, void *all, const uint64_t *ends,
                          const char *what, struct kg_err *err)
{
    char *bytes = all;

    if (r->n < 2)
        return KG_OK;
    struct kg_ranks_part *parts = room(r, 2 * (size_t)r->n, sizeof *parts, what, err);
    if (!parts)
        return err->code;
    for (int p = 0; p < r->n; p++) {
        uint64_t first = p > 0 ? ends[p - 1] : 0;

        parts[r->n + p] = (struct kg_ranks_part){bytes + first,
                                                 (size_t)(ends[p] - first)};
    }
    for (int p = 0; p < r->n; p++)
        parts[p] = parts[r->n + r->me];
    kg_status status = kg_ranks_exchange(r, parts, parts + r->n, what, err);
    kg_mem_free(parts);
    return status;
}

kg_status kg_ranks_share(struct kg_ranks *r, void *bytes, size_t n, const char *what,
                         struct kg_err *err)
{
    if (r->n < 2)
        return KG_OK;
    struct kg_ranks_part *parts = room(r, 2 * (size_t)r->n, sizeof *parts, what, err);
    if (!parts)
        return err->code;
    parts[r->n] = (struct kg_ranks_part){bytes, n};
    for (int p = 0; p < r->n && r->me == 0; p++)
        parts[p] = parts[r->n];
    kg_status status = kg_ranks_exchange(r, parts, parts + r->n, what, err);
    kg_mem_free(parts);
    return status;
}

kg_status kg_ranks_gather_equal(struct kg_ranks *r, void *all, size_t n, const char *what,
                                struct kg_err *err)
{
    uint64_t *ends = room(r, (size_t)r->n, sizeof *ends, what, err);

    if (!ends)
        return err->code;
    for (int p = 0; p < r->n; p++)
        ends[p] = (uint64_t)(p + 1) * n;
    kg_status status = kg_ranks_gather(r, all, ends, what, err);
    kg_mem_free(ends);
    return status;
}

kg_status kg_ranks_gather_own(void *all, struct kg_ranks *r, kg_status made,
                              const void *own, size_t n, const char *what,
                              struct kg_err *err)
{
    char *bytes = NULL;

    if (made == KG_OK)
        made = kg_mem_new(&bytes, r->n > 1 ? (size_t)r->n : 1, n, what, err);
    memcpy(all, &bytes, sizeof bytes);
    KG_TRY(kg_ranks_agree(r, made, what, err));
    memcpy(bytes + (size_t)r->me * n, own, n);
    return r->n > 1 ? kg_ranks_gather_equal(r, bytes, n, what, err) : KG_OK;
}

/* As kg_ranks_gather_equal, but its time counts as waiting for the slowest rank. */
static kg_status wait_for_all(struct kg_ranks *r, void *all, size_t n, const char *what,
                              struct kg_err *err)
{
    r->agreeing = true;
    kg_status status = kg_ranks_gather_equal(r, all, n, what, err);
    r->agreeing = false;
    return status;
}

kg_status kg_ranks_any(struct kg_ranks *r, bool *x, const char *what, struct kg_err *err)
{
    if (r->n < 2)
        return KG_OK;
    uint8_t *all = room(r, (size_t)r->n, sizeof *all, what, err);
    if (!all)
        return err->code;
    all[r->me] = *x;
    kg_status status = wait_for_all(r, all, sizeof *all, what, err);
    for (int p = 0; p < r->n && status == KG_OK; p++)
        *x = *x || all[p];
    kg_mem_free(all);
    return status;
}

/* ---- agreement ---- */

static void sign(struct kg_err *told, struct kg_ranks *r, const struct kg_err *err)
{
    *told = *err;
    if (r->named) {
        r->named = false;
        return;
    }
    kg_err_prefix(told, "%s", kg_ranks_name(r, r->me).text);
}

/* Marks an error that all ranks know. */
static kg_status is_told(struct kg_ranks *r, const struct kg_err *err)
{
    r->told = true;
    if (r->whole)
        r->whole->named = true;
    return err->code;
}

static kg_status lowest_failure(struct kg_ranks *r, const struct kg_ranks_word *all,
                                struct kg_err *err)
{
    r->told = false;
    for (int p = 0; p < r->n; p++)
        if (all[p].err.code != KG_OK) {
            *err = all[p].err;
            return is_told(r, err);
        }
    return KG_OK;
}

/* Checks that all ranks are at the same agreement. Called if no rank failed: a failed
 * rank may be at a later one. */
static kg_status one_place(struct kg_ranks *r, const struct kg_ranks_word *all,
                           struct kg_err *err)
{
    for (int p = 1; p < r->n; p++) {
        if (strncmp(all[p].at, all[0].at, sizeof all[p].at) == 0)
            continue;
        kg_fail(err, KG_ECONFLICT,
                "%s: expected this rank at '%.47s', like %s, found it at '%.47s': these "
                "ranks are not at the same place of the same run",
                kg_ranks_name(r, p).text, all[0].at, kg_ranks_name(r, 0).text, all[p].at);
        r->unlike = true;
        if (r->whole)
            r->whole->unlike = true;
        return is_told(r, err);
    }
    return KG_OK;
}

kg_status kg_ranks_agree(struct kg_ranks *r, kg_status status, const char *what,
                         struct kg_err *err)
{
    struct kg_ranks_word *all, own;

    if (r->n < 2 || (status != KG_OK && (r->told || r->lost)))
        return status;
    memset(&own, 0, sizeof own);
    memcpy(own.at, what, strnlen(what, sizeof own.at - 1));
    if (status != KG_OK)
        sign(&own.err, r, err);
    all = room(r, (size_t)r->n, sizeof *all, what, err);
    if (!all)
        return err->code;
    all[r->me] = own;
    r->kind = "agreement";
    kg_status said = wait_for_all(r, all, sizeof *all, what, err);
    r->kind = NULL;
    if (said == KG_OK)
        said = lowest_failure(r, all, err);
    if (said == KG_OK)
        said = one_place(r, all, err);
    kg_mem_free(all);
    return said;
}

/* ---- a part ---- */

/* Moves parts by the whole; ranks outside the part send and receive nothing. */
static kg_status move_in_part(const struct kg_ranks *r, struct way way,
                              const struct kg_ranks_part *out,
                              const struct kg_ranks_part *in, const char *what,
                              struct kg_err *err)
{
    struct kg_ranks *whole = r->whole;
    size_t n = (size_t)whole->n;
    struct kg_ranks_part *parts = kg_mem_calloc(2 * n, sizeof *parts, what, err);

    if (!parts)
        return err->code;
    memcpy(parts + r->first, out, (size_t)r->n * sizeof *out);
    memcpy(parts + n + r->first, in, (size_t)r->n * sizeof *in);
    whole->agreeing = r->agreeing;
    whole->kind = r->kind;
    kg_status status = move_parts(whole, way, parts, parts + n, what, err);
    whole->agreeing = false;
    whole->kind = NULL;
    kg_mem_free(parts);
    return status;
}

static kg_status exchange_in_part(const struct kg_ranks *r,
                                  const struct kg_ranks_part *out,
                                  const struct kg_ranks_part *in, const char *what,
                                  struct kg_err *err)
{
    return move_in_part(r, (struct way){0}, out, in, what, err);
}

/* The user of a part; its first rank is rank `first` of the whole. */
struct of_part {
    const struct kg_ranks_user *user;
    int first;
};

static void use_in_part(void *context, void *const *lent, size_t at, size_t n)
{
    const struct of_part *p = context;

    p->user->use(p->user->context, lent + p->first, at, n);
}

static kg_status lend_in_part(const struct kg_ranks *r, const struct kg_ranks_part *out,
                              const struct kg_ranks_part *in,
                              const struct kg_ranks_user *user, const char *what,
                              struct kg_err *err)
{
    struct of_part part = {user, r->first};
    const struct kg_ranks_user whole = {use_in_part, &part};

    return move_in_part(r, (struct way){.user = &whole}, out, in, what, err);
}

void kg_ranks_split(struct kg_ranks *part, struct kg_ranks *whole, int first, int n)
{
    static const struct kg_ranks_transport in_part = {.name = "part",
                                                      .exchange = exchange_in_part};
    static const struct kg_ranks_transport lends_in_part = {
        .name = "part", .exchange = exchange_in_part, .lend = lend_in_part};

    *part = (struct kg_ranks){.me = whole->me - first,
                              .n = n,
                              .first = first,
                              .whole = whole,
                              .here = whole->here,
                              .wait_s = whole->wait_s,
                              .transport = kg_ranks_lends(whole) ? &lends_in_part
                                                                 : &in_part};
}

/* Gathering bytes sends two messages from each rank to each other: sizes, then bytes. */

/* per rank: a sum over ranks fits 64 bits */
static const uint64_t most_bytes = (uint64_t)1 << 46;

/* ends[r] <- end of rank r's bytes among all.   n: bytes of this rank */
static kg_status gather_ends(uint64_t *ends, uint64_t n, struct kg_ranks *r,
                             const char *what, struct kg_err *err)
{
    ends[r->me] = n;
    KG_TRY(kg_ranks_gather_equal(r, ends, sizeof *ends, what, err));
    for (int i = 0; i < r->n; i++) {
        if (ends[i] > most_bytes)
            return kg_fail(err, KG_EFORMAT,
                           "%s: expected at most %llu bytes of %s, found %llu", what,
                           (unsigned long long)most_bytes, kg_ranks_name(r, i).text,
                           (unsigned long long)ends[i]);
        ends[i] += i > 0 ? ends[i - 1] : 0;
    }
    return KG_OK;
}

static kg_status take_room(struct kg_ranks_bytes *all, const struct kg_ranks *r,
                           const char *what, struct kg_err *err)
{
    all->bytes = kg_mem_calloc((size_t)all->ends[r->n - 1] + 1, 1, what, err);
    return all->bytes ? KG_OK : err->code;
}

/* Gathers sizes, and allocates the bytes if wanted. */
static kg_status begin(struct kg_ranks_bytes *all, const struct kg_str *own, bool wanted,
                       struct kg_ranks *r, const char *what, struct kg_err *err)
{
    all->bytes = NULL;
    all->ends = kg_mem_calloc((size_t)r->n, sizeof *all->ends, what, err);
    KG_TRY(kg_ranks_agree(r, all->ends ? KG_OK : err->code, what, err));
    kg_status status = gather_ends(all->ends, own->len, r, what, err);
    if (status == KG_OK && wanted)
        status = take_room(all, r, what, err);
    return kg_ranks_agree(r, status, what, err);
}

kg_status kg_ranks_bytes_gather(struct kg_ranks_bytes *all, const struct kg_str *own,
                                struct kg_ranks *r, const char *what, struct kg_err *err)
{
    KG_TRY(begin(all, own, true, r, what, err));
    if (own->len > 0)
        memcpy(all->bytes + all->ends[r->me] - own->len, own->data, own->len);
    return kg_ranks_gather(r, all->bytes, all->ends, what, err);
}

/* out, in: (ranks) */
static void address(struct kg_ranks_part *out, struct kg_ranks_part *in,
                    const struct kg_ranks_bytes *all, const struct kg_str *own,
                    const struct kg_ranks *r)
{
    uint64_t first = 0;

    out[0] = (struct kg_ranks_part){own->data, own->len};
    for (int p = 0; p < r->n && r->me == 0; p++) {
        in[p] = (struct kg_ranks_part){all->bytes + first,
                                       (size_t)(all->ends[p] - first)};
        first = all->ends[p];
    }
}

kg_status kg_ranks_bytes_collect(struct kg_ranks_bytes *all, const struct kg_str *own,
                                 struct kg_ranks *r, const char *what, struct kg_err *err)
{
    struct kg_ranks_part *parts;

    KG_TRY(begin(all, own, r->me == 0, r, what, err));
    parts = kg_mem_calloc(2 * (size_t)r->n, sizeof *parts, what, err);
    kg_status status = kg_ranks_agree(r, parts ? KG_OK : err->code, what, err);
    if (status == KG_OK) {
        address(parts, parts + r->n, all, own, r);
        status = kg_ranks_exchange(r, parts, parts + r->n, what, err);
    }
    kg_mem_free(parts);
    return status;
}

void kg_ranks_bytes_release(struct kg_ranks_bytes *all)
{
    kg_mem_free(all->bytes);
    kg_mem_free(all->ends);
    *all = (struct kg_ranks_bytes){0};
}

kg_status kg_ranks_str_gather(struct kg_str *said, struct kg_ranks *r, const char *what,
                              struct kg_err *err)
{
    struct kg_ranks_bytes all = {0};
    kg_status status = kg_ranks_bytes_gather(&all, said, r, what, err);

    kg_str_clear(said);
    if (status == KG_OK)
        status = kg_str_append(said, all.bytes, (size_t)all.ends[r->n - 1], err);
    kg_ranks_bytes_release(&all);
    return kg_ranks_agree(r, status, what, err);
}
