/* GGUF files, as llama.cpp writes them: metadata by key, and tensors over a map.
 *
 *     "GGUF", version, number of tensors, number of values
 *     values: key, type, value; a value is a number, a bool, a text or an array of those
 *     tensors: name, dimensions (innermost first), type, offset in the data
 *     data, aligned
 *
 * Little-endian files of versions 2 and 3 are read. A split set is opened by its first
 * file, NAME-00001-of-00003.gguf; the set's metadata is in this file. Opening checks
 * everything, so all pointers returned here are inside the file. Errors name the byte.
 */
#ifndef KG_DATA_GGUF_H
#define KG_DATA_GGUF_H

#include "base/file.h"
#include "base/status.h"
#include "data/quants.h"

#include <stdbool.h>
#include <stdint.h>

enum kg_gguf_type {
    KG_GGUF_U8,
    KG_GGUF_I8,
    KG_GGUF_U16,
    KG_GGUF_I16,
    KG_GGUF_U32,
    KG_GGUF_I32,
    KG_GGUF_F32,
    KG_GGUF_BOOL,
    KG_GGUF_TEXT,
    KG_GGUF_ARRAY,
    KG_GGUF_U64,
    KG_GGUF_I64,
    KG_GGUF_F64,
    KG_GGUF_TYPES,
};

enum { KG_GGUF_DIMS = 4, KG_GGUF_NAME = 127 /* bytes of a tensor's name or a key */ };

/* Everything is borrowed from the map. */
struct kg_gguf_value {
    char key[KG_GGUF_NAME + 1];
    enum kg_gguf_type type;
    enum kg_gguf_type of; /* type of an array's items, no ARRAY */
    uint64_t n;           /* bytes of a text, items of an array */
    const unsigned char *at;
};

struct kg_gguf_tensor {
    char name[KG_GGUF_NAME + 1];
    int n_dims;
    int64_t shape[KG_GGUF_DIMS]; /* outermost first, as everywhere in kedge */
    const struct kg_quant *type;
    uint64_t bytes;
    const unsigned char *data; /* borrowed from the map */
    const char *file;          /* borrowed */
};

struct kg_gguf_file {
    struct kg_map map; /* owned; unused for bytes in memory */
    char *path;        /* owned */
};

struct kg_gguf {
    struct kg_gguf_file *files; /* owned */
    size_t n_files;
    struct kg_gguf_value *values; /* owned: of the first file */
    size_t n_values;
    struct kg_gguf_tensor *tensors; /* owned: of all files */
    size_t n_tensors;
    size_t capacity; /* of tensors */
};

/* errors: ENOTFOUND, EFORMAT and EUNSUPPORTED (version, byte order, type), with file and
 * byte */
kg_status kg_gguf_open(struct kg_gguf *g, const char *path,
                       struct kg_err *err) KG_MUST_CHECK;
/* kg_gguf_open for a file's bytes, borrowed; for tests and fuzzing. */
kg_status kg_gguf_open_bytes(struct kg_gguf *g, const void *bytes, size_t n,
                             const char *where, struct kg_err *err) KG_MUST_CHECK;
void kg_gguf_close(struct kg_gguf *g); /* {0} is allowed */

/* NULL if there is no such key. The functions below treat NULL as a value of another
 * type and return the fallback. */
const struct kg_gguf_value *kg_gguf_get(const struct kg_gguf *g, const char *key);
/* NULL: no tensor of that name. */
const struct kg_gguf_tensor *kg_gguf_find(const struct kg_gguf *g, const char *name);
int64_t kg_gguf_int(const struct kg_gguf_value *v, int64_t fallback);
double kg_gguf_real(const struct kg_gguf_value *v, double fallback); /* integers too */
bool kg_gguf_bool(const struct kg_gguf_value *v, bool fallback);
/* Not NUL-terminated; NULL if v is not a text. */
const char *kg_gguf_text(const struct kg_gguf_value *v, size_t *n);
/* Bytes of the value in the file, from `at` on. */
uint64_t kg_gguf_bytes(const struct kg_gguf_value *v);
bool kg_gguf_is(const struct kg_gguf_value *v, const char *text);

/* A walk over an array; start with {.array = v}. It is empty if v is not an array. */
struct kg_gguf_walk {
    const struct kg_gguf_value *array;
    uint64_t i;                /* number of items passed */
    struct kg_gguf_value item; /* the current item; its key stays empty */
};
bool kg_gguf_next(struct kg_gguf_walk *walk);
uint64_t kg_gguf_items(const struct kg_gguf_value *v); /* 0 if v is not an array */

#endif
