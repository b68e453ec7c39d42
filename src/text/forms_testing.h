/* Shared by tests of tokenizer forms: compares ids and decoded texts with HuggingFace's
 * `tokenizers` (a tokenizer.model's with `sentencepiece`).
 *
 * tools/oracle/make_tokenizer_forms.py writes the file: models by name, and forms, which
 * combine the other parts of a tokenizer with one of the models. The environment variable
 * KEDGE_FORMS names another such file. guests/retriever tests the forms of WordPiece.
 */
#ifndef KG_TEXT_FORMS_TESTING_H
#define KG_TEXT_FORMS_TESTING_H

#include "text/tokenizer.h"

#include "base/mem.h"
#include "base/need_testing.h"
#include "base/utf8.h"
#include "data/jsonl.h"
#include "text/bytelevel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FORMS "tests/data/tokenizer/forms.jsonl"

enum { MAX_MODELS = 64 };
struct forms {
    char *names[MAX_MODELS];          /* owned */
    struct kg_str models[MAX_MODELS]; /* owned */
    size_t n_models;
    size_t n_forms;
    size_t n_rows;
    size_t n_wrong;
    const char *only; /* NULL, or the only form to test */
    bool words;       /* test those of WordPiece, else all others */
};

static void forms_release(struct forms *f)
{
    for (size_t i = 0; i < f->n_models; i++) {
        kg_mem_free(f->names[i]);
        kg_str_release(&f->models[i]);
    }
}

static void keep_model(struct forms *f, const struct kg_json *line)
{
    assert_in_range(f->n_models, 0, MAX_MODELS - 1);
    f->names[f->n_models] = kg_mem_strdup(kg_json_text(kg_json_get(line, "name"), NULL),
                                          &(struct kg_err){0});
    NEED(kg_json_put_value(&f->models[f->n_models], kg_json_get(line, "model"), err));
    f->n_models++;
}

static const char *model_named(const struct forms *f, const char *name)
{
    for (size_t i = 0; i < f->n_models; i++)
        if (strcmp(f->names[i], name) == 0)
            return kg_str_text(&f->models[i]);
    fail_msg("no model '%s'", name);
    return NULL;
}

/* Builds a tokenizer from the form's parts and its model. */
static struct kg_tokenizer *open_json(const struct forms *f, const struct kg_json *line,
                                      const char *form)
{
    static const char *const parts[] = {"normalizer", "pre_tokenizer", "post_processor",
                                        "decoder", "added_tokens"};
    struct kg_tokenizer *tok;
    struct kg_str text = {0};
    NEED(kg_str_puts(&text, "{\"version\":\"1.0\"", err));
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        NEED(kg_str_printf(&text, err, ",\"%s\":", parts[i]));
        NEED(kg_json_put_value(&text, kg_json_get(line, parts[i]), err));
    }
    NEED(kg_str_puts(&text, ",\"model\":", err));
    NEED(kg_str_puts(
        &text, model_named(f, kg_json_text(kg_json_get(line, "model"), NULL)), err));
    NEED(kg_str_puts(&text, "}", err));
    NEED(kg_tokenizer_parse(&tok, text.data, text.len, form, err));
    kg_str_release(&text);
    return tok;
}

static struct kg_tokenizer *open_model(const struct kg_json *line, const char *form)
{
    struct kg_tokenizer *tok;
    struct kg_str bytes = {0};
    bool valid;
    size_t n;
    const char *text = kg_json_text(kg_json_get(line, "file"), &n);
    NEED(kg_base64_decode(&bytes, text, n, &valid, err));
    assert_true(valid);
    NEED(kg_tokenizer_parse_model(&tok, bytes.data, bytes.len, form, err));
    kg_str_release(&bytes);
    return tok;
}

/* [text, parse_special, add_special, ids, decoded or null] */
static bool row_is_right(const struct kg_tokenizer *tok, const struct kg_json *row)
{
    struct kg_ids ids = {0};
    struct kg_str text = {0};
    size_t n, n_want;
    const char *s = kg_json_text(kg_json_at(row, 0), &n);
    const char *want = kg_json_text(kg_json_at(row, 4), &n_want);
    const struct kg_json *want_ids = kg_json_at(row, 3);
    const struct kg_encode_opts opts = {
        .parse_special = kg_json_bool(kg_json_at(row, 1), false),
        .add_special = kg_json_bool(kg_json_at(row, 2), false),
    };
    NEED(kg_tokenizer_encode(&ids, tok, s, n, opts, err));
    bool right = ids.n == kg_json_size(want_ids);
    for (size_t i = 0; right && i < ids.n; i++)
        right = ids.ids[i] == kg_json_int(kg_json_at(want_ids, i), -1);
    NEED(kg_tokenizer_decode_text(&text, tok, ids.ids, ids.n, false, err));
    /* single ids print invalid UTF-8 unchanged; the reference prints U+FFFD */
    if (right && want && kg_utf8_is_valid(kg_str_text(&text), text.len))
        right = text.len == n_want && memcmp(kg_str_text(&text), want, n_want) == 0;
    kg_ids_release(&ids);
    kg_str_release(&text);
    return right;
}

static void print_row(const struct kg_tokenizer *tok, const char *form,
                      const struct kg_json *row)
{
    struct kg_str text = {0};
    struct kg_ids ids = {0};
    size_t n;
    const char *s = kg_json_text(kg_json_at(row, 0), &n);
    const struct kg_encode_opts opts = {
        .parse_special = kg_json_bool(kg_json_at(row, 1), false),
        .add_special = kg_json_bool(kg_json_at(row, 2), false),
    };
    NEED(kg_tokenizer_encode(&ids, tok, s, n, opts, err));
    NEED(kg_json_put_value(&text, row, err));
    NEED(kg_str_puts(&text, "\n   kedge: ", err));
    NEED(kg_json_put_ints(&text, ids.ids, ids.n, err));
    NEED(kg_str_puts(&text, " ", err));
    NEED(kg_tokenizer_decode_text(&text, tok, ids.ids, ids.n, false, err));
    print_message("%s: %s\n", form, kg_str_text(&text));
    kg_str_release(&text);
    kg_ids_release(&ids);
}

static bool of_words(const struct forms *f, const struct kg_json *line)
{
    const char *model = kg_json_text(kg_json_get(line, "model"), NULL);

    return model && strstr(model_named(f, model), "\"WordPiece\"");
}

static void check_form(struct forms *f, const struct kg_json *line)
{
    const char *form = kg_json_text(kg_json_get(line, "form"), NULL);
    const struct kg_json *rows = kg_json_get(line, "rows");
    struct kg_tokenizer *tok;
    size_t wrong = 0;
    if ((f->only && strcmp(form, f->only) != 0) || of_words(f, line) != f->words)
        return;
    tok = kg_json_get(line, "file") ? open_model(line, form) : open_json(f, line, form);
    for (size_t i = 0; i < kg_json_size(rows); i++) {
        if (row_is_right(tok, kg_json_at(rows, i)))
            continue;
        if (wrong++ < 2)
            print_row(tok, form, kg_json_at(rows, i));
    }
    if (wrong > 0)
        print_message("%s: %zu of %zu differ\n", form, wrong, kg_json_size(rows));
    f->n_forms++;
    f->n_rows += kg_json_size(rows);
    f->n_wrong += wrong;
    kg_tokenizer_close(tok);
}

/* Tests every form of WordPiece (words), or every other form; at least `least` forms. */
static void check_forms(bool words, size_t least)
{
    const char *path = getenv("KEDGE_FORMS");
    struct forms f = {.only = getenv("KEDGE_FORM"), .words = words};
    struct kg_jsonl *r;
    struct kg_json_doc line = {0};
    bool more = true;
    NEED(kg_jsonl_open(&r, path ? path : FORMS, err));
    for (;;) {
        NEED(kg_jsonl_next(r, &line, &more, err));
        if (!more)
            break;
        if (kg_json_get(line.root, "form"))
            check_form(&f, line.root);
        else
            keep_model(&f, line.root);
    }
    kg_json_release(&line);
    kg_jsonl_close(r);
    forms_release(&f);
    print_message("%zu forms, %zu texts, %zu differ\n", f.n_forms, f.n_rows, f.n_wrong);
    assert_int_equal(f.n_wrong, 0);
    assert_true(f.only || f.n_forms >= least);
}

/* A small tokenizer of these parts. */
static kg_status parse_parts(struct kg_tokenizer **tok, const char *normalizer,
                             const char *pre_tokenizer, const char *post_processor,
                             const char *model, struct kg_err *why)
{
    struct kg_str text = {0};
    NEED(kg_str_printf(&text, err,
                       "{\"version\":\"1.0\",\"added_tokens\":[],\"normalizer\":%s,"
                       "\"pre_tokenizer\":%s,\"post_processor\":%s,\"decoder\":null,"
                       "\"model\":%s}",
                       normalizer, pre_tokenizer, post_processor, model));
    kg_status status = kg_tokenizer_parse(tok, text.data, text.len, "made", why);
    kg_str_release(&text);
    return status;
}

/* Opens a tokenizer of these parts, encodes and decodes. */
static kg_status open_and_use(const char *normalizer, const char *model,
                              struct kg_err *why)
{
    struct kg_tokenizer *tok = NULL;
    struct kg_ids ids = {0};
    struct kg_str text = {0};
    kg_status status = parse_parts(&tok, normalizer, "{\"type\":\"BertPreTokenizer\"}",
                                   "null", model, why);
    if (status == KG_OK)
        status = kg_tokenizer_encode(&ids, tok, "Aab, ab\xC3\xA9", 9,
                                     (struct kg_encode_opts){0}, why);
    if (status == KG_OK)
        status = kg_tokenizer_decode_text(&text, tok, ids.ids, ids.n, false, why);
    kg_str_release(&text);
    kg_ids_release(&ids);
    kg_tokenizer_close(tok);
    return status;
}

/* Each allocation of open_and_use fails once. */
static void every_allocation_fails(const char *normalizer, const char *model)
{
    const uint64_t before = kg_mem_current_bytes();
    kg_status status = KG_ENOMEM;

    for (uint64_t n = 12; status != KG_OK; n++) { /* the test's own text comes first */
        struct kg_err why;

        kg_mem_fail_at(n);
        status = open_and_use(normalizer, model, &why);
        kg_mem_fail_at(0);
        assert_true(status == KG_OK || status == KG_ENOMEM);
        assert_int_equal(kg_mem_current_bytes(), before);
    }
}

#endif
