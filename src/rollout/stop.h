/* Stop strings: found in the text of an answer while it grows, token by token.
 *
 * A stop string may begin inside one token and end inside another, so what is searched is
 * text and never ids.
 */
#ifndef KG_ROLLOUT_STOP_H
#define KG_ROLLOUT_STOP_H

#include "base/status.h"
#include "base/str.h"

#include <stdbool.h>

/* Where the earliest stop string begins in text, looking only at occurrences that end
 * behind byte `seen`. found: false leaves *at alone.   at: byte offset */
bool kg_stop_find(size_t *at, const struct kg_str *text, size_t seen,
                  const char *const *stops, int n_stops);

#endif
