/* A message is read field by field; what is not known is skipped, as protocol buffers
 * want it. Every length comes from the client: a tensor must have as many elements as its
 * datum has tokens, and ids must be below the vocabulary, before anything is computed. */
#include "tinker/wire.h"

#include "data/protobuf.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>

enum { FLOAT32 = 1, INT64 = 2, INT32 = 3 }; /* DType */

static const struct input {
    const char *name;
    size_t field;
    bool wide; /* (N,k) */
    bool ids;
} inputs[KG_TINKER_INPUTS] = {
    {"target_tokens", offsetof(struct kg_tinker_batch, target), false, true},
    {"weights", offsetof(struct kg_tinker_batch, weight), false, false},
    {"logprobs", offsetof(struct kg_tinker_batch, logprob), false, false},
    {"advantages", offsetof(struct kg_tinker_batch, advantage), false, false},
    {"mask", offsetof(struct kg_tinker_batch, mask), false, false},
    {"sequence_ratio_mask", offsetof(struct kg_tinker_batch, mask), false, false},
    {"topk_ids", offsetof(struct kg_tinker_batch, ids), true, true},
    {"topk_logprobs", offsetof(struct kg_tinker_batch, id_logp), true, false},
};

enum { DATA, TOKENS, PACKED, IDS, COUNTS };
static const struct kg_column columns[] = {
    KG_COLUMN(struct kg_tinker_batch, begin, DATA),
    KG_COLUMN(struct kg_tinker_batch, tokens, PACKED),
    KG_COLUMN(struct kg_tinker_batch, target, TOKENS),
    KG_COLUMN(struct kg_tinker_batch, weight, TOKENS),
    KG_COLUMN(struct kg_tinker_batch, logprob, TOKENS),
    KG_COLUMN(struct kg_tinker_batch, advantage, TOKENS),
    KG_COLUMN(struct kg_tinker_batch, mask, TOKENS),
    KG_COLUMN(struct kg_tinker_batch, ids, IDS),
    KG_COLUMN(struct kg_tinker_batch, id_logp, IDS),
    {0},
};

/* ---- reading ---- */

struct tensor {
    const unsigned char *bytes; /* borrowed */
    size_t n;                   /* elements */
    uint64_t dtype;
};
struct datum {
    struct kg_protobuf all;
    int64_t n;
    unsigned has;
    struct tensor input[KG_TINKER_INPUTS];
};

static struct kg_protobuf inside(const struct kg_protobuf_field *f)
{
    return kg_protobuf_over(f->bytes, f->n);
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

static int64_t element(const struct tensor *t, size_t i, double *real)
{
    int64_t whole = 0;
    int32_t half;
    float x;
    if (t->dtype == INT64) {
        memcpy(&whole, t->bytes + 8 * i, 8);
    } else if (t->dtype == INT32) {
        memcpy(&half, t->bytes + 4 * i, 4);
        whole = half;
    } else {
        memcpy(&x, t->bytes + 4 * i, 4);
        *real = x;
        return 0;
    }
    *real = (double)whole;
    return whole;
}

static kg_status read_tensor(struct tensor *t, struct kg_protobuf p, struct kg_err *err)
{
    struct kg_protobuf_field f;
    size_t bytes = 0;
    for (bool more;;) {
        KG_TRY(kg_protobuf_next(&p, &f, &more, err));
        if (!more)
            break;
        if (f.number == 1 && f.wire == KG_PROTOBUF_BYTES) {
            t->bytes = f.bytes;
            bytes = f.n;
        } else if (f.number == 2) {
            return kg_fail(err, KG_EUNSUPPORTED,
                           "expected a dense tensor, found a sparse one");
        } else if (f.number == 3) {
            t->dtype = f.value;
        }
    }
    if (t->dtype != FLOAT32 && t->dtype != INT64 && t->dtype != INT32)
        return kg_fail(err, KG_EFORMAT,
                       "expected dtype float32, int64 or int32, found number %llu",
                       (unsigned long long)t->dtype);
    const size_t each = t->dtype == INT64 ? 8 : 4;
    t->n = bytes / each;
    if (bytes % each == 0)
        return KG_OK;
    return kg_fail(err, KG_EFORMAT, "expected elements of %zu bytes, found %zu bytes",
                   each, bytes);
}

/* An entry of a map: key 1, value 2. */
static kg_status read_entry(char key[KG_TINKER_TEXT], struct kg_protobuf_field *value,
                            struct kg_protobuf p, struct kg_err *err)
{
    struct kg_protobuf_field f;
    *value = (struct kg_protobuf_field){0};
    key[0] = '\0';
    for (bool more;;) {
        KG_TRY(kg_protobuf_next(&p, &f, &more, err));
        if (!more)
            return KG_OK;
        if (f.number == 1)
            KG_TRY(take_text(key, &f, "a key", err));
        else if (f.number == 2)
            *value = f;
    }
}

static kg_status read_input(struct datum *d, const struct kg_protobuf_field *f,
                            struct kg_err *err)
{
    char name[KG_TINKER_TEXT];
    struct kg_protobuf_field value;
    size_t which;
    KG_TRY(read_entry(name, &value, inside(f), err));
    KG_TRY(kg_str_pick(&which, KG_EFORMAT, "loss_fn_inputs", name, inputs,
                       KG_TINKER_INPUTS, sizeof *inputs, err));
    d->has |= 1u << which;
    if (read_tensor(&d->input[which], inside(&value), err) != KG_OK)
        return kg_err_prefix(err, "loss_fn_inputs.%s", name);
    return KG_OK;
}

/* A chunk is text (1), an image (2) or sound (3); text is a message of tokens.
 * to: NULL to count */
static kg_status read_chunk(int32_t *to, int64_t *n, struct kg_protobuf p,
                            struct kg_err *err)
{
    struct kg_protobuf_field f, tokens;
    for (bool more;;) {
        KG_TRY(kg_protobuf_next(&p, &f, &more, err));
        if (!more)
            return KG_OK;
        if (f.number != 1)
            return kg_fail(err, KG_EUNSUPPORTED,
                           "model_input: expected tokens, found an image or sound");
        struct kg_protobuf text = inside(&f);
        for (bool within;;) {
            KG_TRY(kg_protobuf_next(&text, &tokens, &within, err));
            if (!within)
                break;
            if (tokens.number != 1 || tokens.wire != KG_PROTOBUF_BYTES ||
                tokens.n % 4 != 0)
                return kg_fail(err, KG_EFORMAT,
                               "model_input: expected tokens of 4 bytes");
            if (to && tokens.n > 0)
                memcpy(to + *n, tokens.bytes, tokens.n);
            *n += (int64_t)(tokens.n / 4);
        }
    }
}

static kg_status read_datum(struct datum *d, const struct kg_protobuf_field *f,
                            struct kg_err *err)
{
    struct kg_protobuf_field part;
    *d = (struct datum){.all = inside(f)};
    struct kg_protobuf p = d->all;
    for (bool more;;) {
        KG_TRY(kg_protobuf_next(&p, &part, &more, err));
        if (!more)
            return KG_OK;
        if (part.number == 1)
            KG_TRY(read_chunk(NULL, &d->n, inside(&part), err));
        else if (part.number == 2)
            KG_TRY(read_input(d, &part, err));
    }
}

/* Every input has a value for each token, or k; and all data have the same inputs. */
static kg_status check_datum(const struct kg_tinker_batch *b, const struct datum *d,
                             struct kg_err *err)
{
    if (d->n < 1 || !(d->has & 1u << KG_TINKER_TARGET))
        return kg_fail(err, KG_EFORMAT,
                       "expected model_input and target_tokens, found %lld tokens%s",
                       (long long)d->n, d->n < 1 ? "" : " without targets");
    if (d->has != b->has)
        return kg_fail(err, KG_EFORMAT,
                       "expected the loss_fn_inputs of the first datum, found others");
    if (!(d->has & 1u << KG_TINKER_IDS) != !(d->has & 1u << KG_TINKER_ID_LOGPROBS))
        return kg_fail(err, KG_EFORMAT,
                       "expected topk_ids and topk_logprobs together, found one");
    for (int i = 0; i < KG_TINKER_INPUTS; i++) {
        const size_t want = (size_t)d->n * (inputs[i].wide ? (size_t)b->k : 1);
        if (d->has & 1u << i && d->input[i].n != want)
            return kg_fail(err, KG_EFORMAT,
                           "loss_fn_inputs.%s: expected %zu values, found %zu",
                           inputs[i].name, want, d->input[i].n);
    }
    return KG_OK;
}

static kg_status measure_datum(struct kg_tinker_batch *b, const struct datum *d,
                               struct kg_err *err)
{
    if (b->n_data == 0) {
        b->has = d->has;
        const int64_t k = d->n > 0 ? (int64_t)d->input[KG_TINKER_IDS].n / d->n : 0;
        if (k > KG_TINKER_MAX_K)
            return kg_fail(err, KG_EFORMAT,
                           "topk_ids: expected at most %d ids, found "
                           "%lld",
                           KG_TINKER_MAX_K, (long long)k);
        b->k = (int)k;
    }
    KG_TRY(check_datum(b, d, err));
    b->n_data++;
    b->n += d->n;
    return KG_OK;
}

static kg_status fill_input(struct kg_tinker_batch *b, const struct datum *d, int which,
                            int32_t vocab, struct kg_err *err)
{
    const struct input *in = &inputs[which];
    double *to = *(double **)((char *)b + in->field);
    const int64_t each = in->wide ? b->k : 1;
    to += b->begin[b->n_data] * each;
    for (int64_t i = 0; i < d->n * each; i++) {
        const int64_t id = element(&d->input[which], (size_t)i, &to[i]);
        const bool whole = d->input[which].dtype != FLOAT32;
        if (in->ids && (!whole || id < (in->wide ? -1 : 0) || id >= vocab))
            return kg_fail(err, KG_EFORMAT,
                           "loss_fn_inputs.%s[%lld]: expected an id below %d, found %g",
                           in->name, (long long)i, vocab, to[i]);
        if (!isfinite(to[i]))
            return kg_fail(err, KG_ENONFINITE,
                           "loss_fn_inputs.%s[%lld]: expected a number, found %g",
                           in->name, (long long)i, to[i]);
    }
    return KG_OK;
}

static kg_status fill_datum(struct kg_tinker_batch *b, const struct datum *d,
                            int32_t vocab, struct kg_err *err)
{
    struct kg_protobuf p = d->all;
    struct kg_protobuf_field part;
    int32_t *tokens = b->tokens + b->begin[b->n_data] + b->n_data;
    int64_t n = 0;
    for (bool more;;) {
        KG_TRY(kg_protobuf_next(&p, &part, &more, err));
        if (!more)
            break;
        if (part.number == 1)
            KG_TRY(read_chunk(tokens, &n, inside(&part), err));
    }
    for (int64_t i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= vocab)
            return kg_fail(err, KG_EFORMAT,
                           "model_input[%lld]: expected an id below %d, found %d",
                           (long long)i, vocab, tokens[i]);
    for (int64_t i = 0; i < n; i++)
        b->weight[b->begin[b->n_data] + i] = 1;
    for (int i = 0; i < KG_TINKER_INPUTS; i++)
        if (d->has & 1u << i)
            KG_TRY(fill_input(b, d, i, vocab, err));
    b->begin[b->n_data + 1] = b->begin[b->n_data] + n;
    tokens[n] = (int32_t)b->target[b->begin[b->n_data + 1] - 1];
    b->n_data++;
    return KG_OK;
}

/* The later of two values of a key wins. */
static kg_status add_setting(struct kg_tinker_batch *b, const struct kg_protobuf_field *f,
                             struct kg_err *err)
{
    struct kg_tinker_setting s;
    struct kg_protobuf_field value;
    bool more;
    int i = 0;
    KG_TRY(read_entry(s.key, &value, inside(f), err));
    if (value.wire == KG_PROTOBUF_BYTES) { /* a LossConfigValue */
        struct kg_protobuf p = inside(&value);
        KG_TRY(kg_protobuf_next(&p, &value, &more, err));
    }
    if (value.wire != KG_PROTOBUF_64BIT && value.wire != KG_PROTOBUF_BYTES)
        return kg_fail(err, KG_EFORMAT, "loss_fn_config: %s: expected a number or a text",
                       s.key);
    double number;
    memcpy(&number, &value.value, sizeof number);
    if (value.wire == KG_PROTOBUF_BYTES)
        KG_TRY(take_text(s.value, &value, "loss_fn_config", err));
    else
        snprintf(s.value, sizeof s.value, "%.17g", number);
    while (i < b->n_settings && strcmp(b->settings[i].key, s.key) != 0)
        i++;
    if (i == KG_TINKER_SETTINGS)
        return kg_fail(err, KG_EFORMAT, "loss_fn_config: expected at most %d keys",
                       KG_TINKER_SETTINGS);
    b->settings[i] = s;
    b->n_settings += i == b->n_settings;
    return KG_OK;
}

static kg_status read_field(struct kg_tinker_batch *b, const struct kg_protobuf_field *f,
                            struct kg_err *err)
{
    switch (f->number) {
    case 1:
        return take_text(b->model_id, f, "model_id", err);
    case 2:
        b->seq = (int64_t)f->value;
        return KG_OK;
    case 4:
        return take_text(b->loss, f, "loss_fn", err);
    case 5:
    case 7:
        return add_setting(b, f, err);
    case 6:
        b->forward_only = f->value != 0;
        return KG_OK;
    }
    return KG_OK;
}

kg_status kg_tinker_read_head(struct kg_tinker_batch *b, const void *bytes, size_t n,
                              struct kg_err *err)
{
    struct kg_protobuf p = kg_protobuf_over(bytes, n);
    struct kg_protobuf_field f;
    *b = (struct kg_tinker_batch){.n_data = 0};
    for (bool more;;) {
        KG_TRY(kg_protobuf_next(&p, &f, &more, err));
        if (!more)
            return KG_OK;
        if (f.number <= 2)
            KG_TRY(read_field(b, &f, err));
    }
}

/* fill: into the arrays, which have the size that the first walk found. */
static kg_status walk(struct kg_tinker_batch *b, const void *bytes, size_t n, bool fill,
                      int32_t vocab, struct kg_err *err)
{
    struct kg_protobuf p = kg_protobuf_over(bytes, n);
    struct kg_protobuf_field f;
    struct datum d;
    for (bool more;;) {
        KG_TRY(kg_protobuf_next(&p, &f, &more, err));
        if (!more)
            return KG_OK;
        if (f.number != 3) {
            KG_TRY(fill ? KG_OK : read_field(b, &f, err));
            continue;
        }
        kg_status status = read_datum(&d, &f, err);
        if (status == KG_OK)
            status = fill ? fill_datum(b, &d, vocab, err) : measure_datum(b, &d, err);
        if (status != KG_OK)
            return kg_err_prefix(err, "data[%lld]", (long long)b->n_data);
    }
}

kg_status kg_tinker_read_batch(struct kg_tinker_batch *b, const void *bytes, size_t n,
                               int32_t vocab, struct kg_err *err)
{
    *b = (struct kg_tinker_batch){.n_data = 0};
    KG_TRY(walk(b, bytes, n, false, vocab, err));
    const size_t counts[COUNTS] = {
        [DATA] = (size_t)b->n_data + 1,
        [TOKENS] = (size_t)b->n,
        [PACKED] = (size_t)(b->n + b->n_data),
        [IDS] = (size_t)b->n * (size_t)b->k,
    };
    if (b->n_data == 0)
        return kg_fail(err, KG_EFORMAT, "data: expected at least one datum, found none");
    KG_TRY(kg_columns_take(&b->block, b, columns, counts, "a batch", err));
    b->n_data = 0;
    return walk(b, bytes, n, true, vocab, err);
}

void kg_tinker_batch_release(struct kg_tinker_batch *b)
{
    kg_columns_free(&b->block, b, columns);
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

/* Closes a message that begins at `from` of out: its length goes before it. */
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

/* The first k of each of n rows, which are `wide` apart. */
static kg_status put_columns(struct kg_str *out, uint32_t field, const void *cells,
                             size_t n, int k, int wide, struct kg_err *err)
{
    const size_t each = 4 * (size_t)k;
    KG_TRY(put_varint(out, (uint64_t)field << 3 | KG_PROTOBUF_BYTES, err));
    KG_TRY(put_varint(out, n * each, err));
    for (size_t i = 0; i < n; i++)
        KG_TRY(kg_str_append(out, (const char *)cells + 4 * i * (size_t)wide, each, err));
    return KG_OK;
}

static kg_status put_top(struct kg_str *out, uint32_t field, const int32_t *ids,
                         const float *logp, const size_t shape[3], struct kg_err *err)
{
    const int k = (int)shape[1], wide = (int)shape[2];
    const size_t from = out->len;
    KG_TRY(put_columns(out, 1, ids, shape[0], k, wide, err));
    KG_TRY(put_columns(out, 2, logp, shape[0], k, wide, err));
    KG_TRY(put_number(out, 3, shape[1], err));
    KG_TRY(put_number(out, 4, shape[0], err));
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
        KG_TRY(put_top(out, 4, t->top_ids + first * wide, t->top_logp + first * wide,
                       (size_t[]){n, (size_t)k, wide}, err));
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
        KG_TRY(put_top(out, 3, s->top_ids, s->top_logp,
                       (size_t[]){s->n_prompt, (size_t)s->k, (size_t)s->wide}, err));
    return KG_OK;
}
