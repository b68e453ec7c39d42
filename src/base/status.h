/* Status codes and the error that travels with them.
 *
 * A function that can fail returns a kg_status (or a pointer, NULL on failure) and takes
 * a caller-owned struct kg_err, never NULL. On failure the message says what
 * was expected, what was found and where (file, tensor, line, key); on success err is
 * unchanged. A caller that knows more about the place adds a prefix with kg_err_prefix.
 */
#ifndef KG_BASE_STATUS_H
#define KG_BASE_STATUS_H

#include <stddef.h>

typedef enum kg_status {
    KG_OK = 0,
    KG_EINVAL,       /* an argument, option or value that is not allowed */
    KG_ENOMEM,       /* allocation failed, or a cap was reached */
    KG_EIO,          /* the operating system refused a read or write */
    KG_EFORMAT,      /* malformed input: JSON, safetensors, YAML, tokenizer */
    KG_ESHAPE,       /* a tensor has other dimensions than expected */
    KG_EDTYPE,       /* a tensor has another element type than expected */
    KG_ENOTFOUND,    /* a file, key, tensor or table row does not exist */
    KG_EUNSUPPORTED, /* valid, but kedge does not support it */
    KG_ENOSPACE,     /* not enough room on the disk */
    KG_ETIMEOUT,     /* a timeout passed; the message names the awaited process */
    KG_EINTERRUPTED, /* a signal requested a stop */
    KG_ENONFINITE,   /* NaN or infinity where a number was expected */
    KG_ECONFLICT,    /* two inputs contradict each other, or another process is at work */
    KG_EDEVICE,      /* an accelerator refused or failed */
    KG_STATUS_COUNT
} kg_status;

enum { KG_ERR_MESSAGE_BYTES = 768 };

struct kg_err {
    kg_status code;
    char message[KG_ERR_MESSAGE_BYTES]; /* one line, no newline at the end */
};

#define KG_MUST_CHECK __attribute__((warn_unused_result))
/* A symbol that is NULL if the program is linked without its definition. Guests
 * (docs/architecture.md) and the backends of tests are linked in this way. */
#define KG_GUEST                    __attribute__((weak))
#define KG_PRINTF(fmt_index, first) __attribute__((format(printf, fmt_index, first)))

/* Returns the status of expr if it is not OK. */
#define KG_TRY(expr)                                                                     \
    do {                                                                                 \
        kg_status kg_try_status = (expr);                                                \
        if (kg_try_status != KG_OK)                                                      \
            return kg_try_status;                                                        \
    } while (0)

/* Sets the local `status`; if it is not OK, goes to the label. */
#define KG_TRY_GOTO(label, expr)                                                         \
    do {                                                                                 \
        status = (expr);                                                                 \
        if (status != KG_OK)                                                             \
            goto label;                                                                  \
    } while (0)

/* Fills err with the code and a formatted one-line message; a message that is too long is
 * shortened in its middle.   returns code, for `return kg_fail(..)` */
kg_status kg_fail(struct kg_err *err, kg_status code, const char *fmt, ...)
    KG_PRINTF(3, 4);

/* Puts the formatted text and ": " in front of err's message.   returns err->code */
kg_status kg_err_prefix(struct kg_err *err, const char *fmt, ...) KG_PRINTF(2, 3);

/* Short lower-case name of a status, such as "not found".   never NULL */
const char *kg_status_name(kg_status code);

/* Guests: optional parts of the program, each in its own folder of guests/.
 *
 * A guest includes headers of the trunk (src/), never the reverse. A table in the trunk
 * names a guest's function: a header of the trunk declares it with KG_GUEST, and the
 * guest defines it. If the guest is not linked, the function is NULL, and code that needs
 * it calls kg_guest_missing.
 *
 * what: the command, benchmark or file that needs the guest; guest: its folder
 * returns KG_EUNSUPPORTED with err set */
kg_status kg_guest_missing(const char *what, const char *guest, struct kg_err *err);

#endif
