/* Sequences of SFT, token by token: what is learned, what is context, and that every
 * segment is tokenized as a rollout tokenizes it. */
#include "train/open/sft_data.h"

#include "base/need_testing.h"
#include "traj/traj.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char path[64];
static struct kg_tokenizer *tok;
static int32_t eos;

static int set_up(void **state)
{
    struct kg_err err;

    (void)state;
    snprintf(path, sizeof path, "/tmp/kedge-sft-data-%ld.jsonl", (long)getpid());
    if (kg_tokenizer_open(&tok, "tests/data/tokenizer/small", &err) != KG_OK)
        return -1;
    eos = kg_tokenizer_eos(tok);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    kg_tokenizer_close(tok);
    unlink(path);
    return 0;
}

static void write_lines(const char *text)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    assert_int_equal(fclose(f), 0);
}

static struct kg_sft_opts plain(void)
{
    return (struct kg_sft_opts){.max_tokens = 1000, .eos = eos};
}

static void read_lines(struct kg_sft_set *set, const char *text,
                       const struct kg_sft_opts *opts)
{
    write_lines(text);
    NEED(kg_sft_from_jsonl(set, path, tok, opts, err));
}

static void assert_refused(const char *text, kg_status expected, const char *message)
{
    struct kg_sft_set set;
    struct kg_sft_opts opts = plain();
    struct kg_err err;

    write_lines(text);
    assert_int_equal(kg_sft_from_jsonl(&set, path, tok, &opts, &err), expected);
    if (!strstr(err.message, message))
        fail_msg("expected '%s' in '%s'", message, err.message);
    assert_null(set.begin);
}

/* The expected sequence: texts, each tokenized by itself, with one letter for their
 * source. */
struct expected {
    const char *text;
    char source;
    bool plain; /* special tokens in it are plain text */
};

static void assert_sequence(const struct kg_sft_set *set, size_t i,
                            const struct expected *e)
{
    size_t at = set->begin[i], learned = 0;

    for (; e->text; e++) {
        struct kg_ids ids = {0};

        NEED(kg_tokenizer_encode(&ids, tok, e->text, strlen(e->text),
                                 (struct kg_encode_opts){.parse_special = !e->plain},
                                 err));
        assert_true(at + ids.n <= set->begin[i + 1]);
        assert_memory_equal(set->tokens.ids + at, ids.ids, ids.n * sizeof *ids.ids);
        for (size_t t = 0; t < ids.n; t++, at++) {
            assert_int_equal(kg_source_letter(set->source[at]), e->source);
            learned += e->source == 'm';
        }
        kg_ids_release(&ids);
    }
    assert_int_equal(at, set->begin[i + 1]);
    assert_int_equal(set->learned[i], learned);
}

/* ---- episodes ---- */

static void an_episode_is_tokenised_in_pieces_and_tools_carry_no_loss(void **state)
{
    struct kg_sft_set set;
    struct kg_sft_opts opts = plain();
    /* segments meet inside words, so that tokenizing them together would give other
     * ids */
    const struct expected want[] = {
        {"where is the ri", 'p', false},  {"ver<search>x", 'm', false},
        {"the river is here", 't', true}, {"the answer", 'm', false},
        {"<|im_end|>", 'm', false},       {NULL, 0, false}};

    (void)state;
    opts.prompt.template_text = "where is {prompt}";
    read_lines(&set,
               "{\"prompt\": \"the ri\", \"segments\": ["
               "{\"source\": \"model\", \"text\": \"ver<search>x\"},"
               "{\"source\": \"tool\", \"text\": \"the river is here\"},"
               "{\"source\": \"tool\", \"text\": \"\"},"
               "{\"source\": \"model\", \"text\": \"the answer\"}]}\n",
               &opts);
    assert_int_equal(set.n, 1);
    assert_sequence(&set, 0, want);
    kg_sft_set_release(&set);
}

static void a_tool_cannot_spell_a_special_token(void **state)
{
    struct kg_sft_set set;
    struct kg_sft_opts opts = plain();
    const struct expected want[] = {{"q", 'p', false},
                                    {"a<|im_end|>", 'm', false},
                                    {"b<|im_end|>", 't', true},
                                    {NULL, 0, false}};

    (void)state;
    read_lines(&set,
               "{\"question\": \"q\", \"segments\": ["
               "{\"source\": \"model\", \"text\": \"a<|im_end|>\"},"
               "{\"source\": \"tool\", \"text\": \"b<|im_end|>\"}]}\n",
               &opts);
    /* it ends with the tool: no end token is added */
    assert_sequence(&set, 0, want);
    kg_sft_set_release(&set);
}

static void episodes_that_are_none_are_refused(void **state)
{
    (void)state;
    assert_refused("{\"prompt\": \"q\", \"segments\": [{\"source\": \"tool\", \"text\": "
                   "\"t\"}]}\n",
                   KG_EINVAL, "line 1: expected at least one token of the model's text");
    assert_refused("{\"prompt\": \"q\", \"segments\": [{\"source\": \"model\", \"text\": "
                   "\"t\"}, {\"source\": \"user\", \"text\": \"t\"}]}\n",
                   KG_EFORMAT,
                   "segment 2: key 'source': expected \"model\" or \"tool\", found user");
    assert_refused("{\"prompt\": \"q\", \"segments\": [{\"source\": \"model\"}]}\n",
                   KG_EFORMAT, "segment 1: key 'text': expected text, found null");
    assert_refused("{\"prompt\": \"q\", \"segments\": \"x\"}\n", KG_EFORMAT,
                   "key 'segments': expected a list, found string");
    assert_refused("{\"segments\": [{\"source\": \"model\", \"text\": \"t\"}]}\n",
                   KG_EFORMAT, "found no prompt");
}

/* ---- pairs and text ---- */

static void of_a_pair_the_response_is_learned_and_of_text_all_but_the_first(void **state)
{
    struct kg_sft_set set;
    struct kg_sft_opts opts = plain();
    const struct expected pair[] = {{"the question", 'p', false},
                                    {"the answer<|im_end|>", 'm', false},
                                    {NULL, 0, false}};
    const struct expected nothing[] = {
        {"the question", 'p', false}, {"<|im_end|>", 'm', false}, {NULL, 0, false}};
    struct kg_ids ids = {0};

    (void)state;
    NEED(kg_tokenizer_encode(&ids, tok, "\nhe end", 7, (struct kg_encode_opts){0}, err));
    read_lines(&set,
               "{\"problem\": \"the question\", \"solution\": \"the answer\"}\n"
               "{\"prompt\": \"the question\", \"response\": \"the "
               "answer<|im_end|>\"}\n"
               "{\"text\": \"\\nhe end\"}\n"
               "{\"prompt\": \"the question\", \"response\": \"\"}\n",
               &opts);
    assert_int_equal(set.n, 4);
    assert_sequence(&set, 3, nothing); /* an empty response is learned, too */
    assert_sequence(&set, 0, pair);
    assert_sequence(&set, 1, pair);          /* an existing end token is not doubled */
    assert_int_equal(set.learned[2], ids.n); /* without the first, with the end token */
    assert_int_equal(set.source[set.begin[2]], KG_SOURCE_PROMPT);
    assert_int_equal(set.source[set.begin[2] + 1], KG_SOURCE_MODEL);
    kg_ids_release(&ids);
    kg_sft_set_release(&set);
    assert_refused("{\"prompt\": \"q\"}\n", KG_EFORMAT, "line 1: expected \"text\"");
}

/* A table with a column for every form leaves the other columns empty. */
static void a_form_that_says_nothing_is_not_taken(void **state)
{
    static const char *const nothing[] = {
        "\"text\": \"\"",   "\"messages\": []",   "\"conversations\": []",
        "\"segments\": []", "\"segments\": null", "\"response\": \"\"",
    };
    const struct expected pair[] = {
        {"q", 'p', false}, {"a<|im_end|>", 'm', false}, {NULL, 0, false}};
    struct kg_sft_opts opts = plain();
    struct kg_sft_set set;
    char line[160];

    (void)state;
    for (size_t i = 0; i < sizeof nothing / sizeof *nothing; i++) {
        snprintf(line, sizeof line, "{%s, \"prompt\": \"q\", \"completion\": \"a\"}\n",
                 nothing[i]);
        read_lines(&set, line, &opts);
        assert_int_equal(set.n, 1);
        assert_sequence(&set, 0, pair);
        kg_sft_set_release(&set);
    }
}

static void what_is_too_long_is_dropped_and_counted(void **state)
{
    struct kg_sft_set set;
    struct kg_sft_opts opts = plain();
    const struct expected kept[] = {
        {"a", 'p', false}, {"b<|im_end|>", 'm', false}, {NULL, 0, false}};

    (void)state;
    opts.max_tokens = 3;
    read_lines(&set,
               "{\"prompt\": \"a\", \"response\": \"b c d e f g\"}\n"
               "{\"prompt\": \"a\", \"response\": \"b\"}\n",
               &opts);
    assert_int_equal(set.n, 1);
    assert_int_equal(set.dropped_too_long, 1);
    assert_int_equal(set.longest, 3);
    assert_sequence(&set, 0, kept);
    kg_sft_set_release(&set);
}

/* ---- conversations ---- */

static struct kg_chat_template *chat_from(const char *text)
{
    struct kg_chat_template *chat;

    NEED(kg_chat_template_parse(&chat, text, strlen(text), "t", err));
    return chat;
}

static const char turns[] =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

static void of_a_conversation_the_assistants_turns_are_learned(void **state)
{
    struct kg_sft_set set;
    struct kg_sft_opts opts = plain();
    const struct expected want[] = {
        {"<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n", 'p', false},
        {"good day<|im_end|>", 'm', false},
        {"\n<|im_start|>tool\n42<|im_end|>\n<|im_start|>assistant\n", 't', false},
        {"it is 42<|im_end|>", 'm', false},
        {NULL, 0, false}};

    (void)state;
    opts.eos = kg_tokenizer_find(tok, "<|im_end|>");
    opts.prompt.chat = chat_from(turns);
    read_lines(&set,
               "{\"messages\": [{\"role\": \"user\", \"content\": \"hello\"},"
               "{\"role\": \"assistant\", \"content\": \"good day\"},"
               "{\"role\": \"tool\", \"content\": \"42\"},"
               "{\"role\": \"assistant\", \"content\": \"it is 42\"},"
               "{\"role\": \"user\", \"content\": \"not learned, not even read\"}]}\n",
               &opts);
    assert_sequence(&set, 0, want);
    kg_sft_set_release(&set);
    kg_chat_template_close((struct kg_chat_template *)(uintptr_t)opts.prompt.chat);
}

/* In Parquet every message has every key, so null means absent. Reasoning may have any of
 * its names. */
static void null_keys_of_a_conversation_are_no_keys(void **state)
{
    static const char *const his[] = {
        "\"reasoning\": \"hm\"",
        "\"thinking\": \"hm\"",
        "\"reasoning_content\": \"hm\"",
        "\"reasoning_content\": null, \"thinking\": null, \"reasoning\": \"hm\"",
    };
    static const char keyed[] =
        "{% for m in messages %}<|im_start|>{{ m.role }}{% if m.name is defined %} {{ "
        "m.name }}{% endif %}{{ '\\n' }}{% if 'tool_calls' in m %}{{ "
        "m.tool_calls|length }} calls{% endif %}{% if 'reasoning_content' in m %}({{ "
        "m.reasoning_content }}){% endif %}{{ m.content }}<|im_end|>\n{% endfor %}{% if "
        "add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    struct kg_sft_set set;
    struct kg_sft_opts opts = plain();
    const struct expected want[] = {
        {"<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n", 'p', false},
        {"(hm)good day<|im_end|>", 'm', false},
        {NULL, 0, false}};
    char line[512];

    (void)state;
    opts.eos = kg_tokenizer_find(tok, "<|im_end|>");
    opts.prompt.chat = chat_from(keyed);
    for (size_t i = 0; i < sizeof his / sizeof *his; i++) {
        snprintf(
            line, sizeof line,
            "{\"tools\": null, \"prompt\": null, \"messages\": [{\"role\": \"user\", "
            "\"content\": \"hello\", \"name\": null, \"tool_calls\": null}, {\"role\": "
            "\"assistant\", \"content\": \"good day\", \"name\": null, "
            "\"tool_calls\": null, %s}]}\n",
            his[i]);
        read_lines(&set, line, &opts);
        assert_sequence(&set, 0, want);
        kg_sft_set_release(&set);
    }
    kg_chat_template_close((struct kg_chat_template *)(uintptr_t)opts.prompt.chat);
}

/* ShareGPT's keys for the same conversation. */
static void conversations_of_sharegpt_are_messages(void **state)
{
    struct kg_sft_set set;
    struct kg_sft_opts opts = plain();
    const struct expected want[] = {
        {"<|im_start|>system\nbe kind<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n"
         "<|im_start|>assistant\n",
         'p', false},
        {"good day<|im_end|>", 'm', false},
        {NULL, 0, false}};

    (void)state;
    opts.eos = kg_tokenizer_find(tok, "<|im_end|>");
    opts.prompt.chat = chat_from(turns);
    read_lines(&set,
               "{\"conversations\": [{\"from\": \"human\", \"value\": \"hello\"},"
               "{\"from\": \"gpt\", \"value\": \"good day\"}], \"system\": \"be kind\"}\n"
               "{\"conversations\": [{\"from\": \"system\", \"value\": \"be kind\"},"
               "{\"from\": \"human\", \"value\": \"hello\"},"
               "{\"from\": \"gpt\", \"value\": \"good day\"}]}\n",
               &opts);
    assert_sequence(&set, 0, want);
    assert_sequence(&set, 1, want);
    kg_sft_set_release(&set);
    kg_chat_template_close((struct kg_chat_template *)(uintptr_t)opts.prompt.chat);
    assert_refused("{\"conversations\": [{\"from\": \"bing\", \"value\": \"x\"}]}\n",
                   KG_EFORMAT, "turn 1: expected \"from\" of human, gpt");
}

/* Alpaca: the prompt is the instruction and, on the next line, its input; templates
 * apply. */
static void an_instruction_with_its_input_is_a_question(void **state)
{
    struct kg_sft_set set;
    struct kg_sft_opts opts = plain();
    const struct expected with[] = {
        {"Q: add\n1, 2 A:", 'p', false}, {"3<|im_end|>", 'm', false}, {NULL, 0, false}};
    const struct expected without[] = {
        {"Q: add A:", 'p', false}, {"what?<|im_end|>", 'm', false}, {NULL, 0, false}};

    (void)state;
    opts.prompt.template_text = "Q: {prompt} A:";
    read_lines(&set,
               "{\"instruction\": \"add\", \"input\": \"1, 2\", \"output\": \"3\"}\n"
               "{\"instruction\": \"add\", \"input\": \"\", \"output\": \"what?\"}\n"
               "{\"instruction\": \"add\", \"input\": \"\", \"output\": \"what?\", "
               "\"system\": \"\", \"history\": []}\n"
               "{\"instruction\": \"add\", \"input\": null, \"output\": \"what?\", "
               "\"system\": null, \"history\": null}\n",
               &opts);
    assert_sequence(&set, 0, with);
    assert_sequence(&set, 1, without);
    assert_sequence(&set, 2, without);
    assert_sequence(&set, 3, without);
    kg_sft_set_release(&set);
    assert_refused("{\"instruction\": \"a\", \"output\": \"b\", \"history\": "
                   "[[\"c\", \"d\"]]}\n",
                   KG_EUNSUPPORTED, "\"history\" that is not empty");
    assert_refused("{\"instruction\": \"a\", \"output\": \"b\", \"system\": \"s\"}\n",
                   KG_EUNSUPPORTED, "\"history\" that is not empty");
}

static void conversations_need_a_template_that_keeps_what_was_said(void **state)
{
    static const char talk[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": "
        "\"assistant\", \"content\": \"b\"}, {\"role\": \"user\", \"content\": \"c\"}, "
        "{\"role\": \"assistant\", \"content\": \"d\"}]}\n";
    struct kg_sft_set set;
    struct kg_sft_opts opts = plain();
    struct kg_chat_template *chat;
    struct kg_err err;

    (void)state;
    assert_refused(talk, KG_EUNSUPPORTED, "line 1: expected a chat template");
    write_lines(talk);
    opts.prompt.chat = chat = chat_from(
        "{% for m in messages if m.content == 'd' %}{{ m.content }}{% endfor %}");
    assert_int_equal(kg_sft_from_jsonl(&set, path, tok, &opts, &err), KG_EFORMAT);
    assert_non_null(strstr(err.message, "line 1: message 0: expected a chat template"));
    kg_chat_template_close(chat);
    opts.prompt.chat = chat = chat_from(
        "{% if add_generation_prompt %}{% for m in messages %}{{ m.content }}{% endfor %}"
        "{% else %}{% for m in messages | reverse %}{{ m.content }}{% endfor %}"
        "{% endif %}");
    assert_int_equal(kg_sft_from_jsonl(&set, path, tok, &opts, &err), KG_EUNSUPPORTED);
    assert_non_null(strstr(err.message,
                           "message 1: expected the chat template to begin the "
                           "assistant's turn"));
    kg_chat_template_close(chat);
    opts.prompt.chat = chat = chat_from(
        "{% for m in messages %}{% if not loop.last or not add_generation_prompt or "
        "loop.first %}[{{ m.content }}]{% endif %}{% endfor %}");
    assert_int_equal(kg_sft_from_jsonl(&set, path, tok, &opts, &err), KG_OK);
    kg_sft_set_release(&set);
    kg_chat_template_close(chat);
    opts.prompt.chat = chat = chat_from(
        "{{ messages | length }}{% for m in messages %}[{{ m.content }}]{% endfor %}");
    assert_int_equal(kg_sft_from_jsonl(&set, path, tok, &opts, &err), KG_EUNSUPPORTED);
    kg_chat_template_close(chat);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_episode_is_tokenised_in_pieces_and_tools_carry_no_loss),
        cmocka_unit_test(a_tool_cannot_spell_a_special_token),
        cmocka_unit_test(episodes_that_are_none_are_refused),
        cmocka_unit_test(of_a_pair_the_response_is_learned_and_of_text_all_but_the_first),
        cmocka_unit_test(a_form_that_says_nothing_is_not_taken),
        cmocka_unit_test(what_is_too_long_is_dropped_and_counted),
        cmocka_unit_test(of_a_conversation_the_assistants_turns_are_learned),
        cmocka_unit_test(null_keys_of_a_conversation_are_no_keys),
        cmocka_unit_test(conversations_of_sharegpt_are_messages),
        cmocka_unit_test(an_instruction_with_its_input_is_a_question),
        cmocka_unit_test(conversations_need_a_template_that_keeps_what_was_said),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
