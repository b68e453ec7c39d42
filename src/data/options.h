/* Options as data: one row per key with type, default, range and help. YAML, assignments
 * (key=value) and presets set values.
 *
 * A module exports its rows (base/option.h) and their struct. The table of all rows gives
 * the shell completion, the resolved config.yaml, the comparison on resume, and the error
 * that names the nearest valid key. Only options.c and options_scan.c use libyaml.
 */
#ifndef KG_DATA_OPTIONS_H
#define KG_DATA_OPTIONS_H

#include "base/option.h"
#include "base/status.h"
#include "base/str.h"

#include <stdbool.h>
#include <stdint.h>

struct kg_config; /* opaque: a value for every row of its tables */

/* tables: n arrays of rows, each ended by a row with key NULL; borrowed for the life of
 * the config. */
kg_status kg_config_create(struct kg_config **config,
                           const struct kg_opt_row *const *tables, size_t n,
                           struct kg_err *err) KG_MUST_CHECK;
void kg_config_free(struct kg_config *config);

/* Reads a YAML file and drops a byte-order mark, which YAML allows but libyaml counts as
 * a column. */
kg_status kg_yaml_read(struct kg_str *text, const char *path,
                       struct kg_err *err) KG_MUST_CHECK;
/* In YAML a section is a mapping, a value is a scalar or a list of scalars; keys of
 * nested mappings are joined by '.'. Anchors, tags and duplicate keys are refused.
 * errors: EFORMAT, EINVAL with file and line, and for an unknown key the nearest one */
kg_status kg_config_load_yaml(struct kg_config *config, const char *path,
                              struct kg_err *err) KG_MUST_CHECK;
kg_status kg_config_parse_yaml(struct kg_config *config, const char *text, size_t n,
                               const char *where, struct kg_err *err) KG_MUST_CHECK;
/* Sets "section.key=value"; for a list, value is [a, "b"] as in YAML, or one item without
 * brackets. `where` names the source in errors and in kg_config_source. */
kg_status kg_config_override(struct kg_config *config, const char *assignment,
                             const char *where, struct kg_err *err) KG_MUST_CHECK;
/* Sets one key; a list is text as in base/option.h. A weak value (of a preset) never
 * replaces one that is not weak, in whichever order they come. */
kg_status kg_config_set(struct kg_config *config, const char *key, const char *value,
                        bool weak, const char *where, struct kg_err *err) KG_MUST_CHECK;

/* Records what a name in the config was resolved to: an item of a list, or a text (item
 * 0). kg_config_text, _list, _dump_yaml and _diff then show `said`, the resolved name;
 * kg_config_fill stores `stands_for`, such as the folder found. The item must exist
 * (assert). The next value set for the key undoes this.   errors: ENOMEM */
kg_status kg_config_settle(struct kg_config *config, const char *key, size_t item,
                           const char *said, const char *stands_for,
                           struct kg_err *err) KG_MUST_CHECK;

/* For tables that depend on the file: the names below `section` of a YAML file, in order
 * ("sets: {a: {..}, b.x: ..}" has a and b). Does not check the YAML; loading the file
 * does.   names: owned, freed by kg_file_names_free
 * errors: ENOTFOUND, EIO, ENOMEM */
kg_status kg_config_scan(char ***names, size_t *n, const char *path, const char *section,
                         struct kg_err *err) KG_MUST_CHECK;

/* Stores the values of `rows`, a table of the config, in their struct. Without value and
 * default a text becomes "", a list empty, and any other field keeps its contents. Texts
 * and lists are borrowed from the config until it changes. */
void kg_config_fill(void *into, const struct kg_config *config,
                    const struct kg_opt_row *rows);

/* The value of a key and its source. The key must be in the table (assert). Text is
 * borrowed from the config, "" when unset. */
const char *kg_config_text(const struct kg_config *config, const char *key);
bool kg_config_is_set(const struct kg_config *config,
                      const char *key); /* given, or has a default */
bool kg_config_is_given(const struct kg_config *config,
                        const char *key); /* by any source */
/* "FILE line N", the `where` of the assignment or preset, or "default".   borrowed */
const char *kg_config_source(const struct kg_config *config, const char *key);
struct kg_opt_list kg_config_list(const struct kg_config *config, const char *key);
/* Checks that a key is set.   errors: EINVAL, with the key and its help */
kg_status kg_config_require(const struct kg_config *config, const char *key,
                            struct kg_err *err) KG_MUST_CHECK;

/* Every row as YAML that loads back to the same values; with_help adds the help as
 * comments. */
kg_status kg_config_dump_yaml(struct kg_str *out, const struct kg_config *config,
                              bool with_help, struct kg_err *err) KG_MUST_CHECK;
/* Appends "key: a -> b; key: c -> d" for the *n keys that must be equal on resume but
 * differ. */
kg_status kg_config_diff(struct kg_str *out, size_t *n, const struct kg_config *a,
                         const struct kg_config *b, struct kg_err *err) KG_MUST_CHECK;
/* Appends lines "key<tab>value" for every key that must be the same on all ranks. */
kg_status kg_config_put_facts(struct kg_str *out, const struct kg_config *config,
                              struct kg_err *err) KG_MUST_CHECK;
/* All rows, in table order. */
size_t kg_config_rows(const struct kg_config *config);
const struct kg_opt_row *kg_config_row(const struct kg_config *config, size_t i);

#endif
