/* Status codes and the one-line error text.
 *
 * Not a logging facility: nothing is printed here. The one idea: a message is built from
 * the inside out. The function that fails writes what it expected and found, and each
 * caller that knows more about the place puts it in front. A message that does not fit,
 * because of a name of thousands of bytes, is shortened in its middle, because its ends
 * say where and why. Line breaks from file contents become spaces, so that an error stays
 * one line.
 */
#include "base/status.h"

#include "base/mem.h"
#include "base/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const char *const names[KG_STATUS_COUNT] = {
    [KG_OK] = "ok",
    [KG_EINVAL] = "invalid value",
    [KG_ENOMEM] = "out of memory",
    [KG_EIO] = "input/output error",
    [KG_EFORMAT] = "malformed input",
    [KG_ESHAPE] = "wrong shape",
    [KG_EDTYPE] = "wrong dtype",
    [KG_ENOTFOUND] = "not found",
    [KG_EUNSUPPORTED] = "unsupported",
    [KG_ENOSPACE] = "no space left",
    [KG_ETIMEOUT] = "timeout",
    [KG_EINTERRUPTED] = "interrupted",
    [KG_ENONFINITE] = "not finite",
    [KG_ECONFLICT] = "conflict",
    [KG_EDEVICE] = "device failed",
};

static void keep_one_line(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < ' ')
            *text = ' ';
}

/* Keeps both ends of a text that is too long: the first says where, the last says why. */
static void keep_both_ends(char out[KG_ERR_MESSAGE_BYTES], const char *whole, size_t n)
{
    static const char gap[] = " ... ";
    const size_t room = KG_ERR_MESSAGE_BYTES - sizeof gap, half = room / 2;
    const size_t head = half - kg_utf8_cut(whole, half);
    const char *tail = whole + n - half;

    for (int i = 0; i < 3 && ((unsigned char)*tail & 0xc0) == 0x80; i++)
        tail++; /* not inside a character */
    memcpy(out, whole, head);
    memcpy(out + head, gap, sizeof gap);
    strcpy(out + head + sizeof gap - 1, tail);
}

__attribute__((format(printf, 2, 0))) static void fit(char out[KG_ERR_MESSAGE_BYTES],
                                                      const char *fmt, va_list args)
{
    struct kg_err no_memory;
    va_list again;
    char *whole;

    va_copy(again, args);
    int n = vsnprintf(out, KG_ERR_MESSAGE_BYTES, fmt, args);
    if (n >= KG_ERR_MESSAGE_BYTES &&
        (whole = kg_mem_calloc((size_t)n + 1, 1, "a message", &no_memory)) != NULL) {
        vsnprintf(whole, (size_t)n + 1, fmt, again);
        keep_both_ends(out, whole, (size_t)n);
        kg_mem_free(whole);
    }
    va_end(again);
    keep_one_line(out);
}

kg_status kg_fail(struct kg_err *err, kg_status code, const char *fmt, ...)
{
    char text[KG_ERR_MESSAGE_BYTES]; /* an argument may be err->message itself */
    va_list args;

    va_start(args, fmt);
    fit(text, fmt, args);
    va_end(args);
    memcpy(err->message, text, strlen(text) + 1);
    err->code = code;
    return code;
}

kg_status kg_err_prefix(struct kg_err *err, const char *fmt, ...)
{
    char text[KG_ERR_MESSAGE_BYTES];
    va_list args;

    va_start(args, fmt);
    fit(text, fmt, args);
    va_end(args);
    return kg_fail(err, err->code, "%s: %s", text, err->message);
}

const char *kg_status_name(kg_status code)
{
    if ((int)code < 0 || code >= KG_STATUS_COUNT)
        return "unknown status";
    return names[code];
}

kg_status kg_guest_missing(const char *what, const char *guest, struct kg_err *err)
{
    return kg_fail(
        err, KG_EUNSUPPORTED,
        "%s: expected a kedge with guests/%s, found one that was built without "
        "it (rebuild: make, or make GUESTS=\"... %s\")",
        what, guest, guest);
}
