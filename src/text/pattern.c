/* Python's regular expressions on names, by PCRE2's interpreter. Names are short and few,
 * so the JIT would cost more than it saves.
 */
#include "text/pattern.h"

#include "base/mem.h"
#include "text/pcre_internal.h"

#include <stdio.h>
#include <string.h>

enum { FIRST_STEPS = 64, MAX_STEPS = 100000, MAX_DEPTH = 1000, MAX_GROUP_DEPTH = 64 };

struct kg_pattern {
    const char *text;              /* borrowed */
    pcre2_general_context *memory; /* owned, as are those below */
    pcre2_code *code;
    pcre2_match_data *match;
    pcre2_match_context *limits;
};

/* What a fit puts before and after the text of a pattern. */
static const struct {
    const char *before, *behind;
    uint32_t flags;
} fits[] = {
    [KG_PATTERN_WHOLE] = {"", "", PCRE2_ANCHORED | PCRE2_ENDANCHORED},
    [KG_PATTERN_END] = {"(.*\\.)?(", ")$", PCRE2_ANCHORED},
};

static kg_status check_text(const char *text, struct kg_err *err)
{
    static const char *const others[] = {"{,", "[:", "(*"};

    if (strlen(text) >= KG_PATTERN_BYTES)
        return kg_fail(err, KG_EFORMAT,
                       "regular expression '%.60s': expected at most %d bytes, found %zu",
                       text, KG_PATTERN_BYTES - 1, strlen(text));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strstr(text, others[i]))
            return kg_fail(err, KG_EUNSUPPORTED,
                           "regular expression '%.60s', offset %zu: '%s' is not "
                           "supported",
                           text, (size_t)(strstr(text, others[i]) - text), others[i]);
    return KG_OK;
}

static kg_status compile(struct kg_pattern *p, enum kg_pattern_fit fit,
                         struct kg_err *err)
{
    const uint32_t flags = fits[fit].flags | PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C;
    const size_t before = strlen(fits[fit].before), n = strlen(p->text);
    pcre2_compile_context *context = pcre2_compile_context_create(p->memory);
    char whole[KG_PATTERN_BYTES + 16];
    unsigned char why[160] = "";
    size_t offset = 0;
    int code = 0;

    if (!context)
        return kg_fail(err, KG_ENOMEM, "no memory to compile a pattern");
    snprintf(whole, sizeof whole, "%s%s%s", fits[fit].before, p->text, fits[fit].behind);
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    pcre2_set_parens_nest_limit(context, MAX_GROUP_DEPTH);
    p->code = pcre2_compile((PCRE2_SPTR)whole, PCRE2_ZERO_TERMINATED, flags, &code,
                            &offset, context);
    pcre2_compile_context_free(context);
    if (p->code)
        return KG_OK;
    if (code == PCRE2_ERROR_HEAP_FAILED || code == PCRE2_ERROR_NOMEMORY)
        return kg_fail(err, KG_ENOMEM, "no memory to compile a pattern");
    pcre2_get_error_message(code, why, sizeof why);
    offset = offset < before ? 0 : offset - before;
    return kg_fail(err, KG_EFORMAT, "regular expression '%.60s', offset %zu: %s", p->text,
                   offset < n ? offset : n, (char *)why);
}

static kg_status make_room(struct kg_pattern *p, struct kg_err *err)
{
    p->match = pcre2_match_data_create(1, p->memory);
    p->limits = pcre2_match_context_create(p->memory);
    if (!p->match || !p->limits)
        return kg_fail(err, KG_ENOMEM, "no memory to match a pattern");
    pcre2_set_depth_limit(p->limits, MAX_DEPTH);
    return KG_OK;
}

kg_status kg_pattern_create(struct kg_pattern **out, const char *text,
                            enum kg_pattern_fit fit, struct kg_err *err)
{
    KG_TRY(check_text(text, err));
    struct kg_pattern *p = kg_mem_calloc(1, sizeof *p, "regular expression", err);
    if (!p)
        return KG_ENOMEM;
    p->text = text;
    p->memory = kg_pcre_memory(err);
    kg_status status = p->memory ? compile(p, fit, err) : KG_ENOMEM;
    if (status == KG_OK)
        status = make_room(p, err);
    if (status == KG_OK)
        *out = p;
    else
        kg_pattern_free(p);
    return status;
}

void kg_pattern_free(struct kg_pattern *p)
{
    if (!p)
        return;
    pcre2_match_context_free(p->limits);
    pcre2_match_data_free(p->match);
    pcre2_code_free(p->code);
    pcre2_general_context_free(p->memory);
    kg_mem_free(p);
}

/* PCRE2 does not count the steps of a match, but tells whether they exceed a limit, so
 * growing limits are tried. */
static int match(int64_t *steps, const struct kg_pattern *p, const char *name)
{
    uint32_t limit = FIRST_STEPS;
    int rc;

    for (;; limit = limit * 4 < MAX_STEPS ? limit * 4 : MAX_STEPS) {
        pcre2_set_match_limit(p->limits, limit);
        rc = pcre2_match(p->code, (PCRE2_SPTR)name, strlen(name), 0, 0, p->match,
                         p->limits);
        *steps += limit;
        if (rc != PCRE2_ERROR_MATCHLIMIT || limit == MAX_STEPS)
            return rc;
    }
}

kg_status kg_pattern_matches(bool *out, int64_t *steps, const struct kg_pattern *p,
                             const char *name, struct kg_err *err)
{
    unsigned char why[160] = "";
    const int rc = match(steps, p, name);

    *out = rc >= 0;
    if (rc >= 0 || rc == PCRE2_ERROR_NOMATCH)
        return KG_OK;
    if (rc == PCRE2_ERROR_NOMEMORY)
        return kg_fail(err, KG_ENOMEM, "no memory to match a pattern");
    pcre2_get_error_message(rc, why, sizeof why);
    return kg_fail(err, KG_EFORMAT, "regular expression '%.60s' gave up at '%.95s': %s",
                   p->text, name, (char *)why);
}
