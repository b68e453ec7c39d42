/* Shared by the files of the synthetic world: names and questions. */
#ifndef KG_LAB_WIKI_INTERNAL_H
#define KG_LAB_WIKI_INTERNAL_H

#include "base/rng.h"
#include "lab/wiki.h"

enum { KG_WIKI_NAME = 8 }; /* bytes of a name with its NUL, rounded up */

/* Purpose of a draw. A draw depends on seed, purpose, index and part, never on order. */
enum kg_wiki_draw {
    KG_WIKI_DRAW_SYLLABLES = 1,
    KG_WIKI_DRAW_NAMES,
    KG_WIKI_DRAW_CORPUS,
    KG_WIKI_DRAW_QUESTIONS,
    KG_WIKI_DRAW_AUTHOR,
    KG_WIKI_DRAW_KIND,
    KG_WIKI_DRAW_BIRTHPLACE,
    KG_WIKI_DRAW_TEACHER,
    KG_WIKI_DRAW_FAULTY,
    KG_WIKI_DRAW_WAY,
    KG_WIKI_DRAW_STRANGER
};
uint64_t kg_wiki_draw(const struct kg_wiki *w, enum kg_wiki_draw what, int64_t i,
                      enum kg_wiki_part part, uint64_t n);

/* A name is a number from 0; the ranges of the two parts are disjoint. */
void kg_wiki_name(char out[KG_WIKI_NAME], const struct kg_wiki *w, int64_t name);

struct kg_wiki_question {
    bool about_work;    /* the question is about a work; false: a person */
    const char *source; /* "birthplace", "river" */
    const char *format; /* with one %s for the name in question */
    int64_t asked;      /* the name that the question is about */
    int64_t bridge;     /* the name that the passage of `asked` leads to */
    int64_t answer;     /* the answer, a name in the bridge's passage */
    int64_t other;      /* the other name in the bridge's passage */
};
/* Question i of a part, in the order of its file. */
void kg_wiki_question(struct kg_wiki_question *q, const struct kg_wiki *w,
                      enum kg_wiki_part part, int64_t i);
/* A person of the training part and their birthplace. */
void kg_wiki_stranger(int64_t *person, int64_t *birthplace, const struct kg_wiki *w,
                      int64_t i);

#endif
