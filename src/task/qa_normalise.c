/* SQuAD's normalisation, as Python 3 does it: str.lower (with its two special cases),
 * string.punctuation, re's \b over Unicode words, str.split. Bytes that are not UTF-8 are
 * kept, each as a character that belongs to no word.
 *
 * Four short passes of the published code are one pass here: characters are lowered and
 * collected into words; a word that is an article, alone between two word boundaries, is
 * dropped.
 */
#include "task/qa.h"
#include "text/unicode.h"

#include <ctype.h>
#include <string.h>

enum { BAD_BYTE = 0x110000 }; /* plus the byte: not a character */

/* The character at the start of n > 0 bytes.   returns its length in bytes */
static size_t character(uint32_t *cp, const char *text, size_t n)
{
    if (kg_utf8_valid_prefix(text, n < 4 ? n : 4) == 0) {
        *cp = BAD_BYTE + (unsigned char)text[0];
        return 1;
    }
    return kg_utf8_decode(cp, text);
}

static bool is_punctuation(uint32_t cp) { return cp < 0x80 && ispunct((int)cp); }

/* Like \w of re, but without the underscore, which is removed as punctuation. */
static bool is_word(uint32_t cp) { return cp < BAD_BYTE && kg_unicode_is_alnum(cp); }

static bool is_cased(uint32_t cp) { return cp < BAD_BYTE && kg_unicode_is_cased(cp); }

static bool is_case_ignorable(uint32_t cp)
{
    return cp < BAD_BYTE && kg_unicode_is_case_ignorable(cp);
}

enum { MAX_IGNORED = 64 }; /* characters looked at on either side of a sigma */

static bool cased_before(const char *text, size_t end)
{
    for (int i = 0; i < MAX_IGNORED && end > 0; i++) {
        uint32_t cp;
        size_t at = end - 1;

        while (at > 0 && ((unsigned char)text[at] & 0xC0) == 0x80)
            at--;
        character(&cp, text + at, end - at);
        end = at;
        if (!is_case_ignorable(cp))
            return is_cased(cp);
    }
    return false;
}

static bool cased_behind(const char *text, size_t n)
{
    size_t at = 0;

    for (int i = 0; i < MAX_IGNORED && at < n; i++) {
        uint32_t cp;

        at += character(&cp, text + at, n - at);
        if (!is_case_ignorable(cp))
            return is_cased(cp);
    }
    return false;
}

struct words {
    struct kg_str *out;
    size_t start; /* offset in out of the normalised text */
    size_t word;  /* offset in out of the last run of word characters */
    bool in_word; /* out ends in a run of word characters */
    bool gap;     /* white space is due before the next character */
};

static bool is_article(const char *word, size_t n)
{
    return (n == 1 && word[0] == 'a') || (n == 2 && memcmp(word, "an", 2) == 0) ||
           (n == 3 && memcmp(word, "the", 3) == 0);
}

/* Removes an article at the end of out; the words around it stay separated. */
static void end_word(struct words *w)
{
    struct kg_str *out = w->out;

    if (!w->in_word)
        return;
    w->in_word = false;
    if (!is_article(out->data + w->word, out->len - w->word))
        return;
    out->len = w->word;
    if (out->len > w->start && out->data[out->len - 1] == ' ')
        out->len--;
    out->data[out->len] = 0;
    w->gap = true;
}

static kg_status put(struct words *w, uint32_t cp, struct kg_err *err)
{
    char bytes[4];
    size_t n = 1;

    if (!is_word(cp))
        end_word(w);
    if (cp < BAD_BYTE && kg_unicode_is_blank(cp)) {
        w->gap = true;
        return KG_OK;
    }
    if (w->gap && w->out->len > w->start)
        KG_TRY(kg_str_putc(w->out, ' ', err));
    w->gap = false;
    if (is_word(cp) && !w->in_word) {
        w->in_word = true;
        w->word = w->out->len;
    }
    if (cp >= BAD_BYTE)
        bytes[0] = (char)(cp - BAD_BYTE);
    else
        n = kg_utf8_encode(bytes, cp);
    return kg_str_append(w->out, bytes, n, err);
}

/* Puts the character at byte `at` in lower case. Two are special: a capital sigma at the
 * end of a word, and the dotted capital I, which becomes two characters. */
static kg_status put_lower(struct words *w, uint32_t cp, struct kg_qa_text text,
                           size_t at, struct kg_err *err)
{
    enum { SIGMA = 0x3A3, FINAL_SIGMA = 0x3C2, DOTTED_I = 0x130, DOT_ABOVE = 0x307 };

    if (cp == SIGMA && cased_before(text.text, at) &&
        !cased_behind(text.text + at + 2, text.n - at - 2))
        return put(w, FINAL_SIGMA, err);
    if (cp == DOTTED_I) {
        KG_TRY(put(w, 'i', err));
        return put(w, DOT_ABOVE, err);
    }
    return put(w, cp < BAD_BYTE ? kg_unicode_lower(cp) : cp, err);
}

kg_status kg_qa_normalise(struct kg_str *out, const char *text, size_t n,
                          struct kg_err *err)
{
    struct words w = {.out = out, .start = out->len};

    for (size_t at = 0; at < n;) {
        uint32_t cp;
        size_t width = character(&cp, text + at, n - at);

        if (!is_punctuation(cp))
            KG_TRY(put_lower(&w, cp, (struct kg_qa_text){text, n}, at, err));
        at += width;
    }
    end_word(&w);
    return KG_OK;
}
