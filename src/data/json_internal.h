/* What the files json*.c share: a value as it lies in memory, and the memory itself. */
#ifndef KG_DATA_JSON_INTERNAL_H
#define KG_DATA_JSON_INTERNAL_H

#include "data/json.h"

enum { KG_JSON_MAX_DEPTH = 64 };

struct kg_json {
    enum kg_json_type type;
    uint32_t n; /* array and object: members */
    union {
        bool truth;
        int64_t integer;
        double real;
        struct {
            const char *bytes; /* in the pool, NUL terminated */
            size_t len;
        } text;
        struct {
            struct kg_json *items; /* (n) */
            const char **keys;     /* (n) object only, in the order of the text */
            uint32_t *sorted;      /* (n) members by key, or NULL for small objects */
        } list;
    } u;
};

/* n bytes that live as long as the document, not zeroed.   returns NULL with err set */
void *kg_json_alloc(struct kg_json_doc *doc, size_t n, struct kg_err *err) KG_MUST_CHECK;

/* An empty document in the newest chunk of the old one, unless that is a giant. */
void kg_json_empty(struct kg_json_doc *doc);

/* Memory of the builder's own, beside the document: a pool without a root, for what is
 * gone when a call returns. */
struct kg_json_doc *kg_json_scratch(struct kg_json_builder *b);
/* Whether so many more values are within the limit.   errors: EFORMAT */
kg_status kg_json_expect(const struct kg_json_builder *b, size_t values,
                         struct kg_err *err) KG_MUST_CHECK;

#endif
