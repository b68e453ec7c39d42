/* The synthetic world: names, facts and texts. A fact is drawn from the seed and the
 * thing's number, the same every time, so only names are stored; passage, question and
 * gold answer agree without a table. Names are a shuffled list of pairs of
 * syllables, dealt to works, people, places and rivers of both parts, so no name is in
 * both. The text for the tokenizer repeats syllables so often that each becomes a token.
 */
#include "lab/wiki_internal.h"

#include "base/file.h"
#include "base/mem.h"

#include <assert.h>
#include <stdio.h>

/* Without h and j, which would make some undesirable words. */
static const char CONSONANTS[] = "bdfgklmnprstvz";
static const char VOWELS[] = "aeiou";
static const char ENDS[] = "lmnrst";
enum {
    N_CONSONANTS = sizeof CONSONANTS - 1,
    N_VOWELS = sizeof VOWELS - 1,
    N_ENDS = sizeof ENDS - 1,
    SYLLABLES = N_CONSONANTS * N_VOWELS * N_ENDS,
    LEAST_WORKS = 8,
    MOST_WORKS = 3000,
    /* copies of a syllable in the tokenizer's text: more than of any other pair of bytes,
     * so that every syllable becomes a token */
    SYLLABLE_TIMES = 40,
    TEMPLATE_TIMES = 12,
};
static const char *const kinds[] = {"novel", "play", "poem", "film"};

/* Names of a part, in this order: works, people, places, rivers. */
struct part {
    int64_t first;
    int64_t works;
    int64_t people;
    int64_t places; /* and the same number of rivers */
};

struct kg_wiki {
    uint64_t seed;
    struct part parts[KG_WIKI_PARTS];
    int64_t n_names;
    int64_t side;                  /* number of first syllables, and of last ones */
    uint32_t syllables[SYLLABLES]; /* `side` first syllables, then `side` last ones */
    uint32_t *names;               /* (side^2) owned: begin * side + end, shuffled */
    uint32_t *questions[KG_WIKI_PARTS]; /* owned: order in the file */
};

static int64_t names_of(const struct part *p)
{
    return p->works + p->people + 2 * p->places;
}

static int64_t passages_of(const struct part *p)
{
    return p->works + p->people + p->places;
}

/* One per work and one per person. */
static int64_t questions_of(const struct part *p) { return p->works + p->people; }

static struct part part_of(int64_t works, int64_t first)
{
    return (struct part){first, works, 2 * works / 3, works / 3};
}

static struct kg_rng_key key_of(const struct kg_wiki *w)
{
    return (struct kg_rng_key){w->seed, KG_RNG_TASK};
}

uint64_t kg_wiki_draw(const struct kg_wiki *w, enum kg_wiki_draw what, int64_t i,
                      enum kg_wiki_part part, uint64_t n)
{
    return kg_rng_below(key_of(w), (uint64_t)what, (uint32_t)i, part, n);
}

/* ---- making ---- */

static kg_status draw_order(uint32_t **order, const struct kg_wiki *w, int64_t n,
                            uint64_t draw, struct kg_err *err)
{
    KG_TRY(kg_mem_new(order, (size_t)n, sizeof **order, "made-up world", err));
    kg_rng_permutation(*order, (uint32_t)n, key_of(w), draw);
    return KG_OK;
}

/* The smallest side with at least a tenth more names than are used. */
static int64_t side_for(int64_t names)
{
    int64_t side = 2;

    while (10 * side * side < 11 * names)
        side++;
    return side;
}

static kg_status fill(struct kg_wiki *w, struct kg_err *err)
{
    for (int p = 0; p < KG_WIKI_PARTS; p++)
        w->n_names += names_of(&w->parts[p]);
    w->side = side_for(w->n_names);
    assert(2 * w->side <= SYLLABLES);
    kg_rng_permutation(w->syllables, SYLLABLES, key_of(w), KG_WIKI_DRAW_SYLLABLES);
    KG_TRY(draw_order(&w->names, w, w->side * w->side, KG_WIKI_DRAW_NAMES, err));
    for (uint64_t p = 0; p < KG_WIKI_PARTS; p++)
        KG_TRY(draw_order(&w->questions[p], w, questions_of(&w->parts[p]),
                          KG_WIKI_DRAW_QUESTIONS + (p << 32), err));
    return KG_OK;
}

kg_status kg_wiki_create(struct kg_wiki **out, const struct kg_wiki_opts *opts,
                         struct kg_err *err)
{
    *out = NULL;
    if (opts->works < LEAST_WORKS || opts->works > MOST_WORKS)
        return kg_fail(err, KG_EINVAL, "expected %d to %d works, found %lld", LEAST_WORKS,
                       MOST_WORKS, (long long)opts->works);
    struct kg_wiki *w = kg_mem_calloc(1, sizeof *w, "made-up world", err);
    if (!w)
        return err->code;
    w->seed = opts->seed;
    w->parts[KG_WIKI_TRAIN] = part_of(opts->works, 0);
    /* 4 works give 2 people, so that each has a teacher, and 1 place: the minimum */
    w->parts[KG_WIKI_TEST] = part_of(opts->works / 8 < 4 ? 4 : opts->works / 8,
                                     names_of(&w->parts[KG_WIKI_TRAIN]));
    kg_status status = fill(w, err);
    if (status != KG_OK)
        kg_wiki_free(w);
    else
        *out = w;
    return status;
}

void kg_wiki_free(struct kg_wiki *w)
{
    if (!w)
        return;
    kg_mem_free(w->names);
    for (int p = 0; p < KG_WIKI_PARTS; p++)
        kg_mem_free(w->questions[p]);
    kg_mem_free(w);
}

void kg_wiki_count(struct kg_wiki_counts *out, const struct kg_wiki *w)
{
    *out = (struct kg_wiki_counts){.names = w->n_names};
    for (int p = 0; p < KG_WIKI_PARTS; p++) {
        out->passages += passages_of(&w->parts[p]);
        out->questions[p] = questions_of(&w->parts[p]);
    }
}

/* ---- names ---- */

static void put_syllable(char out[4], uint32_t s)
{
    out[0] = CONSONANTS[s / (N_VOWELS * N_ENDS)];
    out[1] = VOWELS[s / N_ENDS % N_VOWELS];
    out[2] = ENDS[s % N_ENDS];
    out[3] = 0;
}

static void capitalise(char *text) { *text = (char)(*text - 'a' + 'A'); }

void kg_wiki_name(char out[KG_WIKI_NAME], const struct kg_wiki *w, int64_t name)
{
    uint32_t pair = w->names[name];

    put_syllable(out, w->syllables[pair / w->side]);
    put_syllable(out + 3, w->syllables[w->side + pair % w->side]);
    capitalise(out);
}

/* ---- facts: from numbers of things to names ---- */

static int64_t work_name(const struct part *p, int64_t i) { return p->first + i; }

static int64_t person_name(const struct part *p, int64_t i)
{
    return p->first + p->works + i;
}

static int64_t place_name(const struct part *p, int64_t i)
{
    return p->first + p->works + p->people + i;
}

static int64_t river_name(const struct part *p, int64_t i)
{
    return place_name(p, p->places + i);
}

static int64_t author_of(const struct kg_wiki *w, enum kg_wiki_part part, int64_t work)
{
    return (int64_t)kg_wiki_draw(w, KG_WIKI_DRAW_AUTHOR, work, part,
                                 (uint64_t)w->parts[part].people);
}

static int64_t birthplace_of(const struct kg_wiki *w, enum kg_wiki_part part,
                             int64_t person)
{
    return (int64_t)kg_wiki_draw(w, KG_WIKI_DRAW_BIRTHPLACE, person, part,
                                 (uint64_t)w->parts[part].places);
}

/* Any person but `person`. */
static int64_t teacher_of(const struct kg_wiki *w, enum kg_wiki_part part, int64_t person)
{
    int64_t people = w->parts[part].people;

    return (person + 1 +
            (int64_t)kg_wiki_draw(w, KG_WIKI_DRAW_TEACHER, person, part,
                                  (uint64_t)people - 1)) %
           people;
}

void kg_wiki_stranger(int64_t *person, int64_t *birthplace, const struct kg_wiki *w,
                      int64_t i)
{
    const struct part *p = &w->parts[KG_WIKI_TRAIN];
    int64_t who = (int64_t)kg_wiki_draw(w, KG_WIKI_DRAW_STRANGER, i, KG_WIKI_TRAIN,
                                        (uint64_t)p->people);

    *person = person_name(p, who);
    *birthplace = place_name(p, birthplace_of(w, KG_WIKI_TRAIN, who));
}

/* ---- questions ---- */

static void ask_about_work(struct kg_wiki_question *q, const struct kg_wiki *w,
                           enum kg_wiki_part part, int64_t work)
{
    const struct part *p = &w->parts[part];
    int64_t author = author_of(w, part, work);

    q->about_work = true;
    q->source = "birthplace";
    q->format = "Where was the author of %s born?";
    q->asked = work_name(p, work);
    q->bridge = person_name(p, author);
    q->answer = place_name(p, birthplace_of(w, part, author));
    q->other = person_name(p, teacher_of(w, part, author));
}

static void ask_about_person(struct kg_wiki_question *q, const struct kg_wiki *w,
                             enum kg_wiki_part part, int64_t person)
{
    const struct part *p = &w->parts[part];
    int64_t place = birthplace_of(w, part, person);

    q->about_work = false;
    q->source = "river";
    q->format = "On which river lies the birthplace of %s?";
    q->asked = person_name(p, person);
    q->bridge = q->other = place_name(p, place);
    q->answer = river_name(p, place);
}

void kg_wiki_question(struct kg_wiki_question *q, const struct kg_wiki *w,
                      enum kg_wiki_part part, int64_t i)
{
    int64_t works = w->parts[part].works, k = w->questions[part][i];

    if (k < works)
        ask_about_work(q, w, part, k);
    else
        ask_about_person(q, w, part, k - works);
}

/* ---- passages ---- */

static kg_status put_work(struct kg_str *out, const struct kg_wiki *w,
                          enum kg_wiki_part part, int64_t work, struct kg_err *err)
{
    const struct part *p = &w->parts[part];
    char name[KG_WIKI_NAME], author[KG_WIKI_NAME];
    uint64_t kind = kg_wiki_draw(w, KG_WIKI_DRAW_KIND, work, part,
                                 sizeof kinds / sizeof *kinds);

    kg_wiki_name(name, w, work_name(p, work));
    kg_wiki_name(author, w, person_name(p, author_of(w, part, work)));
    return kg_str_printf(out, err, "\"contents\": \"%s\\n%s is a %s by %s.\"}\n", name,
                         name, kinds[kind], author);
}

static kg_status put_person(struct kg_str *out, const struct kg_wiki *w,
                            enum kg_wiki_part part, int64_t person, struct kg_err *err)
{
    const struct part *p = &w->parts[part];
    char name[KG_WIKI_NAME], born[KG_WIKI_NAME], teacher[KG_WIKI_NAME];

    kg_wiki_name(name, w, person_name(p, person));
    kg_wiki_name(born, w, place_name(p, birthplace_of(w, part, person)));
    kg_wiki_name(teacher, w, person_name(p, teacher_of(w, part, person)));
    return kg_str_printf(out, err,
                         "\"contents\": \"%s\\n%s was born in %s and studied "
                         "under %s.\"}\n",
                         name, name, born, teacher);
}

static kg_status put_place(struct kg_str *out, const struct kg_wiki *w,
                           enum kg_wiki_part part, int64_t place, struct kg_err *err)
{
    const struct part *p = &w->parts[part];
    char name[KG_WIKI_NAME], river[KG_WIKI_NAME];

    kg_wiki_name(name, w, place_name(p, place));
    kg_wiki_name(river, w, river_name(p, place));
    return kg_str_printf(out, err, "\"contents\": \"%s\\n%s lies on the river %s.\"}\n",
                         name, name, river);
}

static kg_status put_passage(struct kg_str *out, const struct kg_wiki *w, int64_t i,
                             struct kg_err *err)
{
    enum kg_wiki_part part = i < passages_of(&w->parts[KG_WIKI_TRAIN]) ? KG_WIKI_TRAIN
                                                                       : KG_WIKI_TEST;
    const struct part *p = &w->parts[part];

    i -= part == KG_WIKI_TEST ? passages_of(&w->parts[KG_WIKI_TRAIN]) : 0;
    if (i < p->works)
        return put_work(out, w, part, i, err);
    i -= p->works;
    return i < p->people ? put_person(out, w, part, i, err)
                         : put_place(out, w, part, i - p->people, err);
}

static kg_status put_corpus(struct kg_str *out, const struct kg_wiki *w,
                            struct kg_err *err)
{
    struct kg_wiki_counts counts;
    uint32_t *order;
    kg_status status = KG_OK;

    kg_wiki_count(&counts, w);
    KG_TRY(draw_order(&order, w, counts.passages, KG_WIKI_DRAW_CORPUS, err));
    for (int64_t i = 0; i < counts.passages; i++) {
        KG_TRY_GOTO(out, kg_str_printf(out, err, "{\"id\": \"%lld\", ", (long long)i));
        KG_TRY_GOTO(out, put_passage(out, w, order[i], err));
    }
out:
    kg_mem_free(order);
    return status;
}

/* ---- files of questions ---- */

static kg_status put_question(struct kg_str *out, const struct kg_wiki *w,
                              enum kg_wiki_part part, int64_t i, struct kg_err *err)
{
    static const char *const part_names[] = {"train", "test"};
    char asked[KG_WIKI_NAME], bridge[KG_WIKI_NAME], answer[KG_WIKI_NAME];
    struct kg_wiki_question q;
    char text[96];

    kg_wiki_question(&q, w, part, i);
    kg_wiki_name(asked, w, q.asked);
    kg_wiki_name(bridge, w, q.bridge);
    kg_wiki_name(answer, w, q.answer);
    snprintf(text, sizeof text, q.format, asked);
    return kg_str_printf(
        out, err,
        "{\"id\": \"%s-%lld\", \"question\": \"%s\", \"golden_answers\": [\"%s\"], "
        "\"data_source\": \"%s\", \"extra_info\": {\"hops\": [\"%s\", \"%s\"]}}\n",
        part_names[part], (long long)i, text, answer, q.source, asked, bridge);
}

static kg_status put_questions(struct kg_str *out, const struct kg_wiki *w,
                               enum kg_wiki_part part, struct kg_err *err)
{
    for (int64_t i = 0; i < questions_of(&w->parts[part]); i++)
        KG_TRY(put_question(out, w, part, i, err));
    return KG_OK;
}

static kg_status put_train(struct kg_str *out, const struct kg_wiki *w,
                           struct kg_err *err)
{
    return put_questions(out, w, KG_WIKI_TRAIN, err);
}

static kg_status put_test(struct kg_str *out, const struct kg_wiki *w, struct kg_err *err)
{
    return put_questions(out, w, KG_WIKI_TEST, err);
}

/* ---- text for the tokenizer ---- */

/* A first syllable follows a space, as names do; a last syllable is a text by itself. No
 * two syllables are adjacent, so no merge joins the two syllables of a name. */
static kg_status put_syllables(struct kg_str *out, const struct kg_wiki *w,
                               struct kg_err *err)
{
    for (int64_t i = 0; i < w->side; i++) {
        char begin[4], end[4];

        put_syllable(begin, w->syllables[i]);
        put_syllable(end, w->syllables[w->side + i]);
        capitalise(begin);
        KG_TRY(kg_str_printf(out, err, "{\"text\": \" %s\"}\n{\"text\": \"%s\"}\n", begin,
                             end));
    }
    return KG_OK;
}

/* The words around names in prompts, passages and actions, with 0 for a name. */
static kg_status put_words(struct kg_str *out, struct kg_err *err)
{
    static const char *const texts[] = {
        "Where was the author of 0 born?\\n",
        "On which river lies the birthplace of 0?\\n",
        "\\n\\n<information>Doc 1(Title: 0) 0 is a novel by 0.\\nDoc 2(Title: 0) 0 is a "
        "play by 0.</information>\\n\\n",
        "\\n\\n<information>Doc 1(Title: 0) 0 was born in 0 and studied under 0.\\nDoc "
        "2(Title: 0) 0 is a poem by 0.</information>\\n\\n",
        "\\n\\n<information>Doc 1(Title: 0) 0 lies on the river 0.\\nDoc 2(Title: 0) 0 "
        "is a film by 0.</information>\\n\\n",
        "<search> 0</search>",
        "<answer> 0</answer>",
    };

    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        KG_TRY(kg_str_printf(out, err, "{\"text\": \"%s\"}\n", texts[i]));
    return KG_OK;
}

static kg_status put_tokenizer_text(struct kg_str *out, const struct kg_wiki *w,
                                    struct kg_err *err)
{
    for (int i = 0; i < SYLLABLE_TIMES; i++)
        KG_TRY(put_syllables(out, w, err));
    for (int i = 0; i < TEMPLATE_TIMES; i++)
        KG_TRY(put_words(out, err));
    return KG_OK;
}

/* ---- writing ---- */

static const struct {
    const char *name;
    kg_status (*put)(struct kg_str *out, const struct kg_wiki *w, struct kg_err *err);
} files[] = {{"corpus.jsonl", put_corpus},
             {"train.jsonl", put_train},
             {"test.jsonl", put_test},
             {"tokenizer.jsonl", put_tokenizer_text}};

/* An existing file must have this text: only a file of the same world is replaced. */
static kg_status check_same(const char *path, const struct kg_str *text,
                            struct kg_err *err)
{
    struct kg_str found = {0};
    struct kg_err why;
    bool same = kg_file_read(&found, path, text->len, &why) == KG_OK &&
                found.len == text->len && memcmp(found.data, text->data, text->len) == 0;

    kg_str_release(&found);
    return same ? KG_OK
                : kg_fail(err, KG_EINVAL,
                          "%s: expected no file, or one that this command wrote with "
                          "the same options; found other contents (remove it or choose "
                          "another name)",
                          path);
}

kg_status kg_wiki_write(const struct kg_wiki *w, const char *dir, struct kg_err *err)
{
    enum { FILES = sizeof files / sizeof *files };
    struct kg_str texts[FILES] = {{0}};
    kg_status status = KG_OK;

    for (size_t i = 0; i < FILES; i++) {
        const struct kg_path path = kg_path_in(dir, files[i].name);

        KG_TRY_GOTO(out, files[i].put(&texts[i], w, err));
        if (kg_file_exists(path.text))
            KG_TRY_GOTO(out, check_same(path.text, &texts[i], err));
    }
    KG_TRY_GOTO(out, kg_file_make_dirs(dir, err));
    for (size_t i = 0; i < FILES; i++)
        KG_TRY_GOTO(out, kg_file_write_atomic(kg_path_in(dir, files[i].name).text,
                                              texts[i].data, texts[i].len, err));
out:
    for (size_t i = 0; i < FILES; i++)
        kg_str_release(&texts[i]);
    return status;
}
