/* Shared by the files json*.c: the memory layout of a value, and its allocation. */
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
            uint32_t *sorted;      /* (n) members sorted by key; NULL for small objects */
        } list;
    } u;
};

/* n zeroed bytes that live as long as the document.   returns NULL with err set */
void *kg_json_alloc(struct kg_json_doc *doc, size_t n, struct kg_err *err) KG_MUST_CHECK;

/* A value of a list that is still open. */
struct kg_json_member {
    struct kg_json value;
    const char *key;   /* in the pool; NULL outside of objects */
    const char *place; /* borrowed: where the key is in the text; for parsed text */
};
struct kg_json_builder {
    struct kg_json_doc *doc;      /* borrowed: the current document */
    struct kg_json_member *stack; /* owned (capacity) */
    size_t n, capacity;
    size_t open[KG_JSON_MAX_DEPTH]; /* index in the stack of each open list */
    int depth;
    const char *key;    /* key of the next value */
    const char *place;  /* the key's place; on failure, of the second of two equal keys */
    bool wide_integers; /* integers of the text beyond 64 bits become real numbers */
    size_t bytes, max_bytes;
};

/* As add_text and add_key, for bytes already in the document: NUL terminated, no NUL
 * inside a key. */
kg_status kg_json_take_text(struct kg_json_builder *b, const char *text, size_t n,
                            struct kg_err *err) KG_MUST_CHECK;
kg_status kg_json_take_key(struct kg_json_builder *b, const char *key, size_t n,
                           struct kg_err *err) KG_MUST_CHECK;

/* Length of a prefix of ASCII that needs no escape in a string. Only whole words of 8
 * bytes are tested until one fails, so the next bytes may need no escape either. */
size_t kg_json_plain_prefix(const char *text, size_t n);

#endif
