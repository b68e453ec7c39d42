/* Which part of a response is read: the text after the last thought (<think>..</think>
 * and similar), up to the token that ends the turn.
 *
 * A thought without an end was truncated, so there is no answer: a number in it is an
 * intermediate result, and a reward for it would teach guessing. If a new thought begins
 * after that text, the text ends there.
 */
#include "math/math_internal.h"

#include <string.h>

static const struct {
    const char *open;
    const char *close;
} thoughts[] = {
    {"<think>", "</think>"},
    {"<thinking>", "</thinking>"},
    {"<thought>", "</thought>"},
    {"[THINK]", "[/THINK]"},
    {"<|channel|>analysis<|message|>", "<|channel|>final<|message|>"},
    {"\xe2\x97\x81think\xe2\x96\xb7", "\xe2\x97\x81/think\xe2\x96\xb7"},
};

static bool starts(struct kg_math_text t, size_t i, const char *word)
{
    size_t n = strlen(word);

    return n <= t.n - i && strncasecmp(t.text + i, word, n) == 0;
}

/* The offset of the first (or last) occurrence of the word, or t.n. */
static size_t place(struct kg_math_text t, const char *word, bool last)
{
    size_t found = t.n;

    for (size_t i = 0; i < t.n && (last || found == t.n); i++) {
        if ((t.text[i] == word[0]) && starts(t, i, word))
            found = i;
    }
    return found;
}

static struct kg_math_text from(struct kg_math_text t, size_t at)
{
    return (struct kg_math_text){t.text + at, t.n - at};
}

/* ---- tokens that end a turn ---- */

/* Whether a token that ends the turn, or the user's turn, starts at text[i]. The start of
 * the model's own turn ends nothing. */
static bool is_end_token(struct kg_math_text t, size_t i)
{
    static const char *const tokens[] = {
        "</s>",
        "<eos>",
        "<end_of_turn>",
        "<end_of_utterance>",
        "<\xef\xbd\x9c"
        "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>",
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|eot|>",
        "<|eom|>",
        "<|eos|>",
        "<|eod|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|end_of_turn|>",
        "<|END_OF_TURN_TOKEN|>",
        "<|END_RESPONSE|>",
        "<|endofturn|>",
        "<|endofresponse|>",
        "<|user|>",
        "<|im_start|>user",
        "<|start_header_id|>user",
        "<|start|>user",
        "<start_of_turn>user",
    };

    for (size_t k = 0; k < sizeof tokens / sizeof *tokens; k++) {
        if (starts(t, i, tokens[k]))
            return true;
    }
    return false;
}

struct kg_math_text kg_math_before_end_token(struct kg_math_text t)
{
    for (size_t i = 0; i < t.n; i++) {
        if (t.text[i] == '<' && is_end_token(t, i))
            t.n = i;
    }
    return t;
}

bool kg_math_after_thinking(struct kg_math_text *t)
{
    size_t begin = 0;

    for (size_t i = 0; i < sizeof thoughts / sizeof *thoughts; i++) {
        size_t close = place(*t, thoughts[i].close, true);

        if (close < t->n && close + strlen(thoughts[i].close) > begin)
            begin = close + strlen(thoughts[i].close);
    }
    *t = from(*t, begin);
    for (size_t i = 0; i < sizeof thoughts / sizeof *thoughts; i++) {
        size_t open = place(*t, thoughts[i].open, false);

        if (open < t->n && begin == 0)
            return false;
        t->n = open;
    }
    return true;
}
