/* The sampling keys, declared once.
 *
 * Recipes include this list under rollout. and eval., suites in every set, generate, chat
 * and eval as flags, and the server in its requests. A key therefore has one range, one
 * default and one meaning everywhere. A new key is a field, a line here, and the code
 * that draws by it.
 */
#ifndef KG_ROLLOUT_SAMPLING_H
#define KG_ROLLOUT_SAMPLING_H

#include "base/option.h"
#include "rollout/rollout.h"

#include <limits.h>

/* X(field, key, flag, letter, ARG, default, min, max, whether 0 is also allowed, help,
 * ...), with commas between */
#define KG_TEMPERATURE_KEY(X, usual, ...)                                                \
    X(temperature, "temperature", "temperature", 't', "T", usual, 1e-4, 1e4, true,       \
      "divides the logits; 0: the likeliest token", __VA_ARGS__)
/* Off by default. */
#define KG_TRUNCATION_KEYS(X, ...)                                                       \
    X(top_p, "top_p", "top-p", 0, "P", 1, 1e-9, 1, false,                                \
      "keep the likeliest ids up to this total probability; 1: off", __VA_ARGS__),       \
        X(top_k, "top_k", "top-k", 0, "K", 0, 0, INT_MAX, false,                         \
          "keep the K likeliest ids; 0: off", __VA_ARGS__),                              \
        X(min_p, "min_p", "min-p", 0, "P", 0, 0, 1, false,                               \
          "keep ids with at least P times the largest probability; 0: off", __VA_ARGS__)
#define KG_SAMPLING_KEYS(X, ...)                                                         \
    KG_TEMPERATURE_KEY(X, 1, __VA_ARGS__), KG_TRUNCATION_KEYS(X, __VA_ARGS__)

/* Rows over a struct S; `before` is the prefix of their keys, and `at` that of the
 * fields ("rollout.sampling."). may_change: kg_opt_row.free; needs: kg_opt_row.needs of
 * the temperature; cut: that of the other rows */
#define KG_SAMPLING_ROWS(before, S, at, may_change, needs, cut)                          \
    KG_TEMPERATURE_KEY(KG_SAMPLING_ROW, 1, before, S, at, may_change, needs),            \
        KG_TRUNCATION_KEYS(KG_SAMPLING_ROW, before, S, at, may_change, cut)
#define KG_SAMPLING_ROW(field, key, flag, letter, arg, usual, min, max, zero, help,      \
                        before, S, at, may_change, needs)                                \
    KG_OPT_ROW(before key, KG_OPT_AT(S, at field), #usual, min, max, NULL, help,         \
               may_change, needs, zero)
/* Members of a struct kg_sampling's initialiser that switch off truncation. */
#define KG_TRUNCATION_OFF KG_TRUNCATION_KEYS(KG_SAMPLING_USUAL, )

#define KG_SAMPLING_USUAL(field, key, flag, letter, arg, usual, ...) .field = (usual)

/* Rows for the fields of a plain struct kg_sampling (keys without a prefix), ended by a
 * row with key NULL. */
extern const struct kg_opt_row kg_sampling_rows[];
/* The row of a key; NULL if kg_sampling_rows has no such key. */
const struct kg_opt_row *kg_sampling_row(const char *key);

#endif
