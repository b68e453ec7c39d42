/* Positions of the endless sequence of epochs.
 *
 * The epoch of a position is position / n, and its permutation is drawn from the number
 * of the epoch only. A resumed run therefore needs only its position. A weighted sequence
 * consists of rounds of W positions: each part gets as many as its weight, in an order
 * drawn for that round, and continues its own epochs.
 */
#include "train/open/epochs.h"

#include "base/mem.h"

#include <assert.h>

kg_status kg_epochs_take(uint32_t *index, size_t n, uint64_t first, size_t n_examples,
                         struct kg_rng_key key, struct kg_err *err)
{
    uint64_t epoch = UINT64_MAX;
    uint32_t *order = kg_mem_calloc(n_examples, sizeof *order, "order of an epoch", err);

    if (!order)
        return err->code;
    for (size_t i = 0; i < n; i++) {
        uint64_t place = first + i;

        if (place / n_examples != epoch) {
            epoch = place / n_examples;
            kg_rng_permutation(order, (uint32_t)n_examples, key, epoch);
        }
        index[i] = order[place % n_examples];
    }
    kg_mem_free(order);
    return KG_OK;
}

/* ---- weighted parts ---- */

/* The round and epochs that were drawn last, reused for consecutive positions. */
struct mix {
    const struct kg_epochs_part *parts;
    size_t n_parts;
    size_t examples; /* of all parts */
    uint32_t places; /* of a round */
    uint64_t seed;
    uint64_t round;
    uint64_t epoch[KG_EPOCHS_PARTS];
    uint32_t *order; /* (examples) owned: each part's epoch, one part after the other */
    uint32_t *slot;  /* (places) permutation of the round */
    uint32_t *part;  /* (places) the part of each position */
    uint32_t *rank;  /* (places) number of earlier positions of that part in the round */
};

static kg_status mix_init(struct mix *m, const struct kg_epochs_part *parts,
                          size_t n_parts, uint64_t seed, struct kg_err *err)
{
    *m = (struct mix){
        .parts = parts, .n_parts = n_parts, .seed = seed, .round = UINT64_MAX};
    for (size_t k = 0; k < n_parts; k++) {
        m->examples += parts[k].n;
        m->places += parts[k].weight;
        m->epoch[k] = UINT64_MAX;
    }
    m->order = kg_mem_calloc(m->examples + 3 * (size_t)m->places, sizeof *m->order,
                             "order of weighed parts", err);
    if (!m->order)
        return err->code;
    m->slot = m->order + m->examples;
    m->part = m->slot + m->places;
    m->rank = m->part + m->places;
    return KG_OK;
}

/* Slots 0 .. weight[0]-1 are part 0's, the next weight[1] part 1's, and so on. */
static uint32_t part_of_slot(const struct mix *m, uint32_t slot)
{
    uint32_t k = 0;

    while (slot >= m->parts[k].weight)
        slot -= m->parts[k++].weight;
    return k;
}

static void draw_round(struct mix *m, uint64_t round)
{
    struct kg_rng_key key = {m->seed, KG_RNG_MIX};
    uint32_t seen[KG_EPOCHS_PARTS] = {0};

    kg_rng_permutation(m->slot, m->places, key, round);
    for (uint32_t i = 0; i < m->places; i++) {
        m->part[i] = part_of_slot(m, m->slot[i]);
        m->rank[i] = seen[m->part[i]]++;
    }
    m->round = round;
}

/* The example at position `place` of part k's own sequence. Each part has its own
 * permutations. */
static uint32_t example_of(struct mix *m, uint32_t k, uint64_t place)
{
    struct kg_rng_key key = {m->seed, KG_RNG_SHUFFLE};
    size_t before = 0, n = m->parts[k].n;
    uint64_t epoch = place / n;

    for (uint32_t i = 0; i < k; i++)
        before += m->parts[i].n;
    if (epoch != m->epoch[k])
        kg_rng_permutation(m->order + before, (uint32_t)n, key,
                           (uint64_t)k << 40 | epoch);
    m->epoch[k] = epoch;
    return (uint32_t)before + m->order[before + place % n];
}

kg_status kg_epochs_mix(uint32_t *index, size_t n, uint64_t first,
                        const struct kg_epochs_part *parts, size_t n_parts, uint64_t seed,
                        struct kg_err *err)
{
    struct mix m;

    assert(n_parts >= 1 && n_parts <= KG_EPOCHS_PARTS);
    KG_TRY(mix_init(&m, parts, n_parts, seed, err));
    for (size_t i = 0; i < n; i++) {
        uint64_t round = (first + i) / m.places, at = (first + i) % m.places;

        if (round != m.round)
            draw_round(&m, round);
        index[i] = example_of(&m, m.part[at],
                              round * parts[m.part[at]].weight + m.rank[at]);
    }
    kg_mem_free(m.order);
    return KG_OK;
}
