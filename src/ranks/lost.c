/* One poll of the ranks, for every transport (the rule is in lost.h).
 *
 * Why it names the cause and not its victims: a rank that waits replies and names the
 * ranks that it waits for; a rank that hangs or is gone does not reply. So a rank that is
 * waited for and does not reply cannot itself be waiting for another one. All ranks see
 * the same replies and take the lowest such number, so all name the same rank. The poll
 * begins before the timeout ends, early enough for replies: min(wait_s / 2, 5 s).
 */
#include "ranks/lost.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_ANSWER_S = 5 };

void kg_poll_moved(struct kg_poll_clock *c)
{
    *c = (struct kg_poll_clock){.since = kg_clock_seconds()};
}

enum kg_poll_moment kg_poll_look(struct kg_poll_clock *c, double wait_s)
{
    double now = kg_clock_seconds();
    double to_answer = wait_s / 2 < MOST_ANSWER_S ? wait_s / 2 : MOST_ANSWER_S;

    if (wait_s > 0 && c->asked == 0 && now - c->since > wait_s - to_answer) {
        c->asked = now;
        return KG_POLL_ASK;
    }
    return c->asked > 0 && now - c->asked > to_answer ? KG_POLL_OVER : KG_POLL_WAIT;
}

void kg_poll_begin(struct kg_poll *roll, unsigned char *room, int n, int me,
                   const unsigned char *waits)
{
    *roll = (struct kg_poll){n, me, room, room + n};
    memset(room, 0, 2 * (size_t)n);
    kg_poll_answer(roll, me, waits);
}

void kg_poll_answer(struct kg_poll *roll, int rank, const unsigned char *waits)
{
    roll->here[rank] = 1;
    for (int p = 0; p < roll->n; p++)
        roll->wanted[p] |= waits[p];
}

int kg_poll_missing(const struct kg_poll *roll, int direct)
{
    for (int p = 0; p < roll->n; p++)
        if (roll->wanted[p] && !roll->here[p])
            return p;
    return direct;
}

int kg_poll_lowest(const struct kg_poll *roll)
{
    int p = 0;

    while (!roll->here[p])
        p++; /* ends: this rank replied */
    return p;
}

kg_status kg_ranks_say_lost(const struct kg_ranks *r, int who, bool takes,
                            const char *what, struct kg_err *err)
{
    int p = abs(who) - 1;
    struct kg_ranks_name me = kg_ranks_name(r, r->me), name = kg_ranks_name(r, p);

    if (r->loss && atomic_load(&r->loss->unlike))
        return kg_fail(err, KG_ECONFLICT,
                       "%s: %s: %s got an unexpected message and ended", what, me.text,
                       name.text);
    if (p == r->me)
        return kg_fail(
            err, KG_ETIMEOUT,
            "%s: %s: the others waited for it for %.0f s (ranks.wait_s) and ended", what,
            me.text, r->wait_s);
    if (who > 0)
        return kg_fail(err, KG_EIO, "%s: %s: %s is gone", what, me.text, name.text);
    return kg_fail(err, KG_ETIMEOUT, "%s: %s: %s %s for %.0f s (ranks.wait_s)", what,
                   me.text, takes ? "nothing accepted by" : "nothing from", name.text,
                   r->wait_s);
}
