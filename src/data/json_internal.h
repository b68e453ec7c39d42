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

/* n bytes that live as long as the document, zeroed.   returns NULL with err set */
void *kg_json_alloc(struct kg_json_doc *doc, size_t n, struct kg_err *err) KG_MUST_CHECK;

/* A value that waits for its list to be closed. */
struct kg_json_member {
    struct kg_json value;
    const char *key;   /* in the pool; NULL outside of objects */
    const char *place; /* borrowed: the key in the text, where it is parsed */
};
struct kg_json_builder {
    struct kg_json_doc *doc;      /* borrowed: the one that has begun */
    struct kg_json_member *stack; /* owned (capacity) */
    size_t n, capacity;
    size_t open[KG_JSON_MAX_DEPTH]; /* where the open lists are in the stack */
    int depth;
    const char *key;    /* of the next value */
    const char *place;  /* of that key; of the second of two equal ones, when they fail */
    bool wide_integers; /* in text: one beyond 64 bits is a real number */
    size_t bytes, max_bytes;
};

/* As add_text and add_key, of bytes that the document has: a NUL is behind them, a key
 * holds none. */
kg_status kg_json_take_text(struct kg_json_builder *b, const char *text, size_t n,
                            struct kg_err *err) KG_MUST_CHECK;
kg_status kg_json_take_key(struct kg_json_builder *b, const char *key, size_t n,
                           struct kg_err *err) KG_MUST_CHECK;

/* Bytes of the text that stand in a string as they are, looked at by whole words: there
 * may be more behind them. */
size_t kg_json_plain_prefix(const char *text, size_t n);

#endif
