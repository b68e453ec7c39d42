/* Status codes and the one-line error text.
 *
 * Not a logging facility: nothing is printed here. The one idea: a message is built from
 * the inside out. The place that fails says what it expected and found, and each caller
 * that knows more of where puts it in front. A message that does not fit is cut at the
 * end, never at the front, and line breaks that came in through file contents become
 * spaces, so that an error stays one line.
 */
#include "base/status.h"

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

kg_status kg_fail(struct kg_err *err, kg_status code, const char *fmt, ...)
{
    char text[KG_ERR_MESSAGE_BYTES]; /* an argument may be err->message itself */
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    keep_one_line(text);
    memcpy(err->message, text, strlen(text) + 1);
    err->code = code;
    return code;
}

kg_status kg_err_prefix(struct kg_err *err, const char *fmt, ...)
{
    char text[KG_ERR_MESSAGE_BYTES];
    va_list args;

    va_start(args, fmt);
    int n = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    size_t used = n < 0 ? 0 : (size_t)n;
    if (used + 2 < sizeof text) {
        size_t room = sizeof text - used - 3;
        size_t rest = strnlen(err->message, sizeof err->message - 1);
        rest = rest < room ? rest : room;
        memcpy(text + used, ": ", 2);
        memcpy(text + used + 2, err->message, rest);
        text[used + 2 + rest] = '\0';
    }
    keep_one_line(text);
    memcpy(err->message, text, strlen(text) + 1);
    return err->code;
}

const char *kg_status_name(kg_status code)
{
    if ((int)code < 0 || code >= KG_STATUS_COUNT)
        return "unknown status";
    return names[code];
}
