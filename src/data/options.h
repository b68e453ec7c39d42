/* Options as data: one row per key with type, default, range and help; YAML and key=value
 * fill them.
 *
 * A module exports its rows (base/option.h) and the struct that they are over; one table
 * of all rows makes the shell completion, the resolved config.yaml, the comparison on
 * resume, and the error that names the nearest valid key. libyaml stands behind options.c
 * and options_scan.c alone.
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

/* The text of a YAML file, without the byte-order mark that an editor put in front: YAML
 * allows one, and libyaml counts it as a column. */
kg_status kg_yaml_read(struct kg_str *text, const char *path,
                       struct kg_err *err) KG_MUST_CHECK;
/* YAML: sections are mappings, values scalars or lists of scalars; nested mappings join
 * with '.'; anchors, tags and duplicate keys are refused.
 * errors: EFORMAT/EINVAL with file and line, nearest valid key named */
kg_status kg_config_load_yaml(struct kg_config *config, const char *path,
                              struct kg_err *err) KG_MUST_CHECK;
kg_status kg_config_parse_yaml(struct kg_config *config, const char *text, size_t n,
                               const char *where, struct kg_err *err) KG_MUST_CHECK;
/* "section.key=value"; a list is [a, "b"] as in YAML, or the text of its only item.
 * `where` names the source in errors and in kg_config_source. */
kg_status kg_config_override(struct kg_config *config, const char *assignment,
                             const char *where, struct kg_err *err) KG_MUST_CHECK;
/* Set one key. A weak source (a preset) never replaces what a strong one gave, whatever
 * the order. */
kg_status kg_config_set(struct kg_config *config, const char *key, const char *value,
                        bool weak, const char *where, struct kg_err *err) KG_MUST_CHECK;

/* An item of a list, or the text that is a value (item 0), is settled as `said`, as when
 * a name has come to mean one thing: text, list, dump and diff have that. kg_config_fill
 * puts what it stands for into fields in its place, a folder that was looked for. The
 * item must be there (assert). Gone with the next value of the key.   errors: ENOMEM */
kg_status kg_config_settle(struct kg_config *config, const char *key, size_t item,
                           const char *said, const char *stands_for,
                           struct kg_err *err) KG_MUST_CHECK;

/* For tables that depend on the file: the names below `section` of a YAML file, in order
 * ("sets: {a: {..}, b.x: ..}" has a and b). Nothing is checked: what is wrong with the
 * file is said when it is loaded.   names: owned, freed by kg_file_names_free
 * errors: NOTFOUND, EIO, ENOMEM */
kg_status kg_config_scan(char ***names, size_t *n, const char *path, const char *section,
                         struct kg_err *err) KG_MUST_CHECK;

/* Put the values of rows, which are those of a table of the config, into the struct that
 * they are over. A field whose row has neither a value nor a default stays as it is, a
 * text becomes "". Texts and lists are borrowed from the config until it is changed. */
void kg_config_fill(void *into, const struct kg_config *config,
                    const struct kg_opt_row *rows);

/* What is known of a key: what was said, and where. The key must be in the table
 * (assert). Text is borrowed from the config, "" when unset. */
const char *kg_config_text(const struct kg_config *config, const char *key);
bool kg_config_is_set(const struct kg_config *config,
                      const char *key); /* given, or has a default */
bool kg_config_is_given(const struct kg_config *config,
                        const char *key); /* by any source */
/* "FILE line N", the `where` of the assignment or preset, or "default".   borrowed */
const char *kg_config_source(const struct kg_config *config, const char *key);
struct kg_opt_list kg_config_list(const struct kg_config *config, const char *key);
/* Error EINVAL naming the key and its help when it is not set. */
kg_status kg_config_require(const struct kg_config *config, const char *key,
                            struct kg_err *err) KG_MUST_CHECK;

/* Every row as YAML that loads back to the same values, with the help as comments when
 * asked. */
kg_status kg_config_dump_yaml(struct kg_str *out, const struct kg_config *config,
                              bool with_help, struct kg_err *err) KG_MUST_CHECK;
/* "key: a -> b; key: c -> d" of every key that differs and is not free on resume; *n of
 * them. */
kg_status kg_config_diff(struct kg_str *out, size_t *n, const struct kg_config *a,
                         const struct kg_config *b, struct kg_err *err) KG_MUST_CHECK;
/* Lines "key<tab>value" of every key that may not differ by rank. */
kg_status kg_config_put_facts(struct kg_str *out, const struct kg_config *config,
                              struct kg_err *err) KG_MUST_CHECK;
/* All rows, in table order. */
size_t kg_config_rows(const struct kg_config *config);
const struct kg_opt_row *kg_config_row(const struct kg_config *config, size_t i);

#endif
