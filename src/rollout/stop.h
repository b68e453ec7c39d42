/* Stop strings: found in the text of a completion while it grows, token by token.
 *
 * A stop string may begin inside one token and end inside another, so the search is on
 * text, not on ids.
 */
#ifndef KG_ROLLOUT_STOP_H
#define KG_ROLLOUT_STOP_H

#include "base/status.h"
#include "base/str.h"

#include <stdbool.h>

/* *at <- the byte offset of the earliest stop string in text that ends after byte `seen`.
 * returns false, with *at unchanged, if there is none */
bool kg_stop_find(size_t *at, const struct kg_str *text, size_t seen,
                  const char *const *stops, int n_stops);

#endif
