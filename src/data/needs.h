/* The condition under which a key has an effect: a text in its row's column `needs`.
 *
 *   lora.rank>0                          another key is above a number
 *   optim.schedule=linear,cosine         is one of these; "sft.data=": is empty
 *   episode.env!none                     is none of these
 *   sft.val                              is not empty
 *   task.name=math|task.rewards~math     or; ~: an item of the list is NAME=math
 *   sft.steps>0|sft.epochs>0&sft.data=   and, of lower precedence than |
 *   search.where!http*                   its text does not begin with http
 *   @a KL in the loss:kl.in,kl.tail      a condition in code, and keys that change it
 *
 * A flag is a key with its dashes (--keys= holds if --keys is not given), a word in
 * capitals is the first argument, and the key "" is the action of the command:
 *
 *   =index,query&--dense                 index or query is the action, --dense is given
 *
 * If a table has a prefix (`before`), it is put before each key. From this text kedge
 * decides whether a key has an effect, writes the message if it has none, and lists the
 * keys that would give it one.
 */
#ifndef KG_DATA_NEEDS_H
#define KG_DATA_NEEDS_H

#include "data/options.h"

struct kg_needs_in {
    const struct kg_config *config; /* NULL: `text` has the values */
    const char *before;             /* prefix of the keys: "sets.NAME.", or "" */
    /* whether the condition after "@" holds; NULL: no row has such a condition */
    bool (*is_so)(const void *user, const char *text);
    const char *(*text)(const void *user, const char *key); /* "" for none */
    const void *user;
};

/* Returns the next clause that does not hold; NULL at the end. *from: initially the whole
 * text; the call moves it past the clause */
const char *kg_needs_next(const char **from, const struct kg_needs_in *in);
/* Writes a clause in words: "with sft.steps above 0 or sft.epochs above 0". */
void kg_needs_say(char *text, size_t bytes, const char *clause);
/* Whether is(in->config, key) holds for some key of the clause. */
bool kg_needs_any(const char *clause, const struct kg_needs_in *in,
                  bool (*is)(const struct kg_config *config, const char *key));

#endif
