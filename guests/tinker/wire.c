/* A message is read field by field; unknown fields are skipped, as protocol buffers
 * require. Every length comes from the client: a tensor must have as many elements as its
 * datum has tokens, and ids must be below the vocabulary, before anything is computed. */
#include "tinker/wire.h"

#include "data/protobuf.h"

#include <math.h>
#include <stdio.h>

enum { FLOAT32 = 1, INT64 = 2, INT32 = 3 }; /* DType */

static const char *const inputs[KG_TINKER_INPUTS] = {
    "target_tokens", "weights",  "logprobs",      "advantages",
    "mask",          "topk_ids", "topk_logprobs", "sequence_ratio_mask"};

static bool is_ids(int input)
{
    return input == KG_TINKER_TARGET || input == KG_TINKER_IDS;
}
static int64_t width(const struct kg_tinker_batch *b, int input)
{
    return input == KG_TINKER_IDS || input == KG_TINKER_ID_LOGPROBS ? b->k : 1;
}

/* ---- reading ---- */

typedef kg_status (*take_fn)(void *to, const struct kg_protobuf_field *f,
                             struct kg_err *err);

static kg_status walk(void *to, take_fn take, const void *bytes, size_t n,
                      struct kg_err *err)
{
    struct kg_protobuf p = kg_protobuf_over(bytes, n);
    struct kg_protobuf_field f;
    for (bool more;;) {
        KG_TRY(kg_protobuf_next(&p, &f, &more, err));
        if (!more)
            return KG_OK;
        KG_TRY(take(to, &f, err));
    }
}

static kg_status take_text(char to[KG_TINKER_TEXT], const struct kg_protobuf_field *f,
                           const char *what, struct kg_err *err)
{
    if (f->wire != KG_PROTOBUF_BYTES || f->n >= KG_TINKER_TEXT ||
        (f->n > 0 && memchr(f->bytes, 0, f->n)))
        return kg_fail(err, KG_EFORMAT, "%s: expected text of at most %d bytes", what,
                       KG_TINKER_TEXT - 1);
    if (f->n > 0)
        memcpy(to, f->bytes, f->n);
    to[f->n] = '\0';
    return KG_OK;
}

/* An entry of a map. */
struct entry {
    char key[KG_TINKER_TEXT];
    struct kg_protobuf_field value;
};
static kg_status take_entry(void *to, const struct kg_protobuf_field *f,
                            struct kg_err *err)
{
    struct entry *e = to;
    if (f->number == 2)
        e->value = *f;
    return f->number == 1 ? take_text(e->key, f, "a key", err) : KG_OK;
}

struct tensor {
    struct kg_protobuf_field data;
    uint64_t dtype;
    size_t n; /* elements */
};
struct datum {
    struct kg_tinker_batch *b;
    int64_t n;
    unsigned has;
    struct tensor input[KG_TINKER_INPUTS];
};

static kg_status take_tensor(void *to, const struct kg_protobuf_field *f,
                             struct kg_err *err)
{
    struct tensor *t = to;
    if (f->number == 2)
        return kg_fail(err, KG_EUNSUPPORTED,
                       "expected a dense tensor, found a sparse one");
    if (f->number == 1)
        t->data = *f;
    if (f->number == 3)
        t->dtype = f->value;
    return KG_OK;
}

static kg_status check_tensor(struct tensor *t, struct kg_err *err)
{
    const size_t each = t->dtype == INT64 ? 8 : 4;
    if (t->dtype != FLOAT32 && t->dtype != INT64 && t->dtype != INT32)
        return kg_fail(err, KG_EFORMAT,
                       "expected dtype float32, int64 or int32, found number %llu",
                       (unsigned long long)t->dtype);
    t->n = t->data.n / each;
    if (t->data.n % each == 0)
        return KG_OK;
    return kg_fail(err, KG_EFORMAT, "expected elements of %zu bytes, found %zu bytes",
                   each, t->data.n);
}

static kg_status take_input(struct datum *d, const struct kg_protobuf_field *f,
                            struct kg_err *err)
{
    struct entry e = {.key = ""};
    struct tensor t = {.n = 0};
    size_t which;
    KG_TRY(walk(&e, take_entry, f->bytes, f->n, err));
    KG_TRY(kg_str_pick(&which, KG_EFORMAT, "loss_fn_inputs", e.key, inputs,
                       KG_TINKER_INPUTS, sizeof *inputs, err));
    kg_status status = walk(&t, take_tensor, e.value.bytes, e.value.n, err);
    if (status == KG_OK)
        status = check_tensor(&t, err);
    if (status != KG_OK)
        return kg_err_prefix(err, "loss_fn_inputs.%s", e.key);
    d->has |= 1u << which;
    d->input[which] = t;
    return KG_OK;
}

/* A chunk is text (1), an image (2) or sound (3); text is a message of tokens. */
static kg_status take_tokens(void *to, const struct kg_protobuf_field *f,
                             struct kg_err *err)
{
    struct datum *d = to;
    if (f->number != 1 || f->wire != KG_PROTOBUF_BYTES || f->n % 4 != 0)
        return kg_fail(err, KG_EFORMAT, "model_input: expected tokens of 4 bytes");
    d->n += (int64_t)(f->n / 4);
    return f->n > 0 ? kg_str_append(&d->b->packed, f->bytes, f->n, err) : KG_OK;
}

static kg_status take_chunk(void *to, const struct kg_protobuf_field *f,
                            struct kg_err *err)
{
    if (f->number == 1)
        return walk(to, take_tokens, f->bytes, f->n, err);
    return kg_fail(err, KG_EUNSUPPORTED,
                   "model_input: expected tokens, found an image or sound");
}

static kg_status take_part(void *to, const struct kg_protobuf_field *f,
                           struct kg_err *err)
{
    if (f->number == 1)
        return walk(to, take_chunk, f->bytes, f->n, err);
    return f->number == 2 ? take_input(to, f, err) : KG_OK;
}

/* Every input has one value per token, or k; all data have the first datum's inputs. */
static kg_status check_datum(const struct datum *d, struct kg_err *err)
{
    struct kg_tinker_batch *b = d->b;
    if (d->n < 1 || !(d->has & 1u << KG_TINKER_TARGET))
        return kg_fail(err, KG_EFORMAT,
                       "expected model_input and target_tokens, found %lld tokens%s",
                       (long long)d->n, d->n < 1 ? "" : " without targets");
    if (b->n_data == 0) {
        const int64_t k = (int64_t)d->input[KG_TINKER_IDS].n / d->n;
        if (k > KG_TINKER_MAX_K)
            return kg_fail(err, KG_EFORMAT,
                           "topk_ids: expected at most %d ids, found %lld",
                           KG_TINKER_MAX_K, (long long)k);
        b->has = d->has;
        b->k = (int)k;
    }
    if (d->has != b->has)
        return kg_fail(err, KG_EFORMAT,
                       "expected the loss_fn_inputs of the first datum, found others");
    if (!(d->has & 1u << KG_TINKER_IDS) != !(d->has & 1u << KG_TINKER_ID_LOGPROBS))
        return kg_fail(err, KG_EFORMAT,
                       "expected topk_ids and topk_logprobs together, found one");
    for (int i = 0; i < KG_TINKER_INPUTS; i++) {
        const size_t want = (size_t)(d->n * width(b, i));
        if (d->has & 1u << i && d->input[i].n != want)
            return kg_fail(err, KG_EFORMAT,
                           "loss_fn_inputs.%s: expected %zu values, found %zu", inputs[i],
                           want, d->input[i].n);
    }
    return KG_OK;
}

/* *real: the element.   returns it as an integer, or 0 for a float */
static int64_t element(double *real, const struct tensor *t, size_t i)
{
    int64_t whole = 0;
    int32_t half = 0;
    float x = 0;
    if (t->dtype == INT64)
        memcpy(&whole, t->data.bytes + 8 * i, 8);
    else
        memcpy(t->dtype == INT32 ? (void *)&half : &x, t->data.bytes + 4 * i, 4);
    *real = t->dtype == FLOAT32 ? x : (double)(whole += half);
    return whole;
}

static kg_status fill_input(double *to, const struct datum *d, int which,
                            struct kg_err *err)
{
    const struct tensor *t = &d->input[which];
    const int64_t least = which == KG_TINKER_IDS ? -1 : 0;
    for (size_t i = 0; i < t->n; i++) {
        const int64_t id = element(&to[i], t, i);
        if (is_ids(which) && (t->dtype == FLOAT32 || id < least || id >= d->b->vocab))
            return kg_fail(err, KG_EFORMAT,
                           "loss_fn_inputs.%s[%zu]: expected an id below %d, found %g",
                           inputs[which], i, d->b->vocab, to[i]);
        if (!isfinite(to[i]))
            return kg_fail(err, KG_ENONFINITE,
                           "loss_fn_inputs.%s[%zu]: expected a number, found %g",
                           inputs[which], i, to[i]);
    }
    return KG_OK;
}

static kg_status add_values(const struct datum *d, struct kg_err *err)
{
    struct kg_tinker_batch *b = d->b;
    for (int i = 0; i < KG_TINKER_INPUTS; i++) {
        struct kg_str *s = &b->values[i == KG_TINKER_RATIO_MASK ? KG_TINKER_MASK : i];
        const size_t n = (size_t)(d->n * width(b, i));
        if (n == 0)
            continue;
        if (i < KG_TINKER_COLUMNS)
            KG_TRY(kg_str_extend(s, n * sizeof(double), err));
        double *to = (double *)(void *)s->data + s->len / sizeof(double) - n;
        for (size_t j = 0; j < n && i < KG_TINKER_COLUMNS; j++)
            to[j] = i == KG_TINKER_WEIGHT;
        if (d->has & 1u << i)
            KG_TRY(fill_input(to, d, i, err));
    }
    return KG_OK;
}

/* The datum's tokens are already in b->packed; appends its last target to them. */
static kg_status add_datum(const struct datum *d, struct kg_err *err)
{
    struct kg_tinker_batch *b = d->b;
    const int32_t *tokens = (const int32_t *)b->packed.data + b->n + b->n_data;
    double last;
    for (int64_t i = 0; i < d->n; i++)
        if (tokens[i] < 0 || tokens[i] >= b->vocab)
            return kg_fail(err, KG_EFORMAT,
                           "model_input[%lld]: expected an id below %d, found %d",
                           (long long)i, b->vocab, tokens[i]);
    KG_TRY(add_values(d, err));
    b->n += d->n;
    const int32_t id = (int32_t)element(&last, &d->input[KG_TINKER_TARGET],
                                        (size_t)d->n - 1);
    KG_TRY(kg_str_append(&b->packed, &id, sizeof id, err));
    return kg_str_append(&b->begins, &b->n, sizeof b->n, err);
}

static kg_status take_datum(struct kg_tinker_batch *b, const struct kg_protobuf_field *f,
                            struct kg_err *err)
{
    struct datum d = {.b = b};
    kg_status status = walk(&d, take_part, f->bytes, f->n, err);
    if (status == KG_OK)
        status = check_datum(&d, err);
    if (status == KG_OK)
        status = add_datum(&d, err);
    if (status != KG_OK)
        return kg_err_prefix(err, "data[%lld]", (long long)b->n_data);
    b->n_data++;
    return KG_OK;
}

static kg_status take_any(void *to, const struct kg_protobuf_field *f, struct kg_err *err)
{
    (void)err;
    *(struct kg_protobuf_field *)to = *f;
    return KG_OK;
}

/* If a key occurs twice, the later value counts. */
static kg_status take_setting(struct kg_tinker_batch *b,
                              const struct kg_protobuf_field *f, struct kg_err *err)
{
    struct entry e = {.key = ""};
    struct kg_protobuf_field v = {0};
    double number;
    int i = 0;
    KG_TRY(walk(&e, take_entry, f->bytes, f->n, err));
    if (e.value.wire == KG_PROTOBUF_BYTES) /* a LossConfigValue */
        KG_TRY(walk(&v, take_any, e.value.bytes, e.value.n, err));
    else
        v = e.value;
    if (v.wire != KG_PROTOBUF_64BIT && v.wire != KG_PROTOBUF_BYTES)
        return kg_fail(err, KG_EFORMAT, "loss_fn_config: %s: expected a number or a text",
                       e.key);
    while (i < b->n_settings && strcmp(b->settings[i].key, e.key) != 0)
        i++;
    if (i == KG_TINKER_SETTINGS)
        return kg_fail(err, KG_EFORMAT, "loss_fn_config: expected at most %d keys",
                       KG_TINKER_SETTINGS);
    b->n_settings += i == b->n_settings;
    memcpy(b->settings[i].key, e.key, sizeof e.key);
    if (v.wire == KG_PROTOBUF_BYTES)
        return take_text(b->settings[i].value, &v, "loss_fn_config", err);
    memcpy(&number, &v.value, sizeof number);
    snprintf(b->settings[i].value, sizeof e.key, "%.17g", number);
    return KG_OK;
}

static kg_status take_head(void *to, const struct kg_protobuf_field *f,
                           struct kg_err *err)
{
    struct kg_tinker_batch *b = to;
    if (f->number == 2)
        b->seq = (int64_t)f->value;
    return f->number == 1 ? take_text(b->model_id, f, "model_id", err) : KG_OK;
}

static kg_status take_request(void *to, const struct kg_protobuf_field *f,
                              struct kg_err *err)
{
    struct kg_tinker_batch *b = to;
    switch (f->number) {
    case 3:
        return take_datum(b, f, err);
    case 4:
        return take_text(b->loss, f, "loss_fn", err);
    case 5:
    case 7:
        return take_setting(b, f, err);
    case 6:
        b->forward_only = f->value != 0;
    }
    return take_head(to, f, err);
}

kg_status kg_tinker_read_head(struct kg_tinker_batch *b, const void *bytes, size_t n,
                              struct kg_err *err)
{
    *b = (struct kg_tinker_batch){.n_data = 0};
    return walk(b, take_head, bytes, n, err);
}

kg_status kg_tinker_read_batch(struct kg_tinker_batch *b, const void *bytes, size_t n,
                               int32_t vocab, struct kg_err *err)
{
    *b = (struct kg_tinker_batch){.vocab = vocab};
    KG_TRY(kg_str_append(&b->begins, &b->n, sizeof b->n, err));
    KG_TRY(walk(b, take_request, bytes, n, err));
    if (b->n_data == 0)
        return kg_fail(err, KG_EFORMAT, "data: expected at least one datum, found none");
    b->begin = (const int64_t *)b->begins.data;
    b->tokens = (const int32_t *)b->packed.data;
    for (int i = 0; i < KG_TINKER_COLUMNS; i++)
        b->value[i] = (const void *)b->values[i].data;
    return KG_OK;
}

void kg_tinker_batch_release(struct kg_tinker_batch *b)
{
    kg_str_release(&b->begins);
    kg_str_release(&b->packed);
    for (int i = 0; i < KG_TINKER_COLUMNS; i++)
        kg_str_release(&b->values[i]);
}

/* ---- writing ---- */

static kg_status put_varint(struct kg_str *out, uint64_t x, struct kg_err *err)
{
    for (; x >= 0x80; x >>= 7)
        KG_TRY(kg_str_putc(out, (char)(x | 0x80), err));
    return kg_str_putc(out, (char)x, err);
}

static kg_status put_number(struct kg_str *out, uint32_t field, uint64_t x,
                            struct kg_err *err)
{
    KG_TRY(put_varint(out, (uint64_t)field << 3 | KG_PROTOBUF_VARINT, err));
    return put_varint(out, x, err);
}

static kg_status put_bytes(struct kg_str *out, uint32_t field, const void *bytes,
                           size_t n, struct kg_err *err)
{
    KG_TRY(put_varint(out, (uint64_t)field << 3 | KG_PROTOBUF_BYTES, err));
    KG_TRY(put_varint(out, n, err));
    return n > 0 ? kg_str_append(out, bytes, n, err) : KG_OK;
}

/* Ends a message that begins at `from` of out: inserts its tag and length before it. */
static kg_status close_message(struct kg_str *out, size_t from, uint32_t field,
                               struct kg_err *err)
{
    struct kg_str inner = {0};
    kg_status status = KG_OK;
    KG_TRY_GOTO(out, kg_str_append(&inner, out->data + from, out->len - from, err));
    out->len = from;
    out->data[from] = '\0';
    KG_TRY_GOTO(out, put_bytes(out, field, kg_str_text(&inner), inner.len, err));
out:
    kg_str_release(&inner);
    return status;
}

/* The entry "logprobs" of an ArrayRecord's fields: a BatchedTensor. */
static kg_status put_logprobs(struct kg_str *out, const struct kg_tinker_batch *b,
                              const float *logp, struct kg_err *err)
{
    const size_t entry = out->len;
    KG_TRY(put_bytes(out, 1, "logprobs", 8, err));
    const size_t tensor = out->len;
    KG_TRY(put_bytes(out, 1, logp, (size_t)b->n * sizeof *logp, err));
    KG_TRY(put_varint(out, 2 << 3 | KG_PROTOBUF_BYTES, err));
    KG_TRY(put_varint(out, (uint64_t)(b->n_data + 1) * 8, err));
    for (int64_t i = 0; i <= b->n_data; i++) {
        const int64_t offset = b->begin[i] * (int64_t)sizeof *logp;
        KG_TRY(kg_str_append(out, &offset, sizeof offset, err));
    }
    KG_TRY(put_number(out, 3, FLOAT32, err));
    KG_TRY(close_message(out, tensor, 2, err));
    return close_message(out, entry, 2, err);
}

kg_status kg_tinker_put_output(struct kg_str *out, const struct kg_tinker_batch *b,
                               const float *logp, double loss_sum, struct kg_err *err)
{
    KG_TRY(put_bytes(out, 1, "ArrayRecord", 11, err));
    const size_t record = out->len;
    KG_TRY(put_bytes(out, 1, "ArrayRecord", 11, err));
    KG_TRY(put_logprobs(out, b, logp, err));
    KG_TRY(put_number(out, 3, (uint64_t)b->n_data, err));
    KG_TRY(close_message(out, record, 2, err));
    const size_t metric = out->len;
    KG_TRY(put_bytes(out, 1, "loss:sum", 8, err));
    KG_TRY(put_varint(out, 2 << 3 | KG_PROTOBUF_64BIT, err));
    KG_TRY(kg_str_append(out, &loss_sum, sizeof loss_sum, err));
    return close_message(out, metric, 3, err);
}

/* Ids and log-probs: the first k of each of n rows, which are `wide` apart. */
static kg_status put_top(struct kg_str *out, uint32_t field, const int32_t *ids,
                         const float *logp, size_t n, int k, int wide, struct kg_err *err)
{
    const void *const cells[] = {ids, logp};
    const size_t from = out->len, each = 4 * (size_t)k;
    for (uint32_t f = 0; f < 2; f++) {
        KG_TRY(put_varint(out, (f + 1) << 3 | KG_PROTOBUF_BYTES, err));
        KG_TRY(put_varint(out, n * each, err));
        for (size_t i = 0; i < n; i++)
            KG_TRY(kg_str_append(out, (const char *)cells[f] + 4 * i * (size_t)wide, each,
                                 err));
    }
    KG_TRY(put_number(out, 3, (uint64_t)k, err));
    KG_TRY(put_number(out, 4, n, err));
    return close_message(out, from, field, err);
}

static kg_status put_sequence(struct kg_str *out, const struct kg_traj *t, int k,
                              struct kg_err *err)
{
    const size_t from = out->len, first = t->prompt_n, n = t->n - first;
    KG_TRY(put_number(out, 1, t->finish == KG_FINISH_LENGTH, err));
    KG_TRY(put_bytes(out, 2, t->tokens + first, n * sizeof *t->tokens, err));
    KG_TRY(put_bytes(out, 3, t->logp + first, n * sizeof *t->logp, err));
    const size_t wide = (size_t)t->top_k;
    if (k > 0)
        KG_TRY(put_top(out, 4, t->top_ids + first * wide, t->top_logp + first * wide, n,
                       k, t->top_k, err));
    return close_message(out, from, 1, err);
}

kg_status kg_tinker_put_samples(struct kg_str *out, const struct kg_tinker_samples *s,
                                struct kg_err *err)
{
    for (size_t i = 0; i < s->n; i++)
        KG_TRY(put_sequence(out, &s->trajs[i], s->sample_k, err));
    if (s->prompt_logp)
        KG_TRY(
            put_bytes(out, 2, s->prompt_logp, s->n_prompt * sizeof *s->prompt_logp, err));
    if (s->k > 0)
        KG_TRY(put_top(out, 3, s->top_ids, s->top_logp, s->n_prompt, s->k, s->wide, err));
    return KG_OK;
}
