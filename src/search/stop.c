/* English stop words, one sorted table. They are frequent, so searching them would read
 * most of the index, and they hardly affect the rank. They are left out of queries, never
 * of passages, so the list can change without a new index; if a query has few other
 * words, they count. Other languages have no list: their queries only take longer. */
#include "search/index_file.h"

#include <string.h>

/* sorted; no word longer than LONGEST */
enum { LONGEST = 10 };
static const char *const words[] = {
    "a",     "about",  "after", "also",  "am",     "an",   "and",   "any",   "are",
    "as",    "at",     "be",    "been",  "being",  "but",  "by",    "can",   "could",
    "d",     "did",    "do",    "does",  "doing",  "for",  "from",  "had",   "has",
    "have",  "having", "he",    "her",   "here",   "him",  "his",   "how",   "i",
    "if",    "in",     "into",  "is",    "it",     "its",  "ll",    "may",   "me",
    "might", "must",   "my",    "no",    "not",    "of",   "on",    "or",    "our",
    "re",    "s",      "shall", "she",   "should", "so",   "some",  "such",  "t",
    "than",  "that",   "the",   "their", "them",   "then", "there", "these", "they",
    "this",  "those",  "to",    "us",    "ve",     "was",  "we",    "were",  "what",
    "when",  "where",  "which", "while", "who",    "whom", "whose", "why",   "will",
    "with",  "would",  "you",   "your"};

bool kg_stop_word(const char *word, size_t n)
{
    size_t low = 0;
    size_t high = sizeof words / sizeof *words;
    char text[LONGEST + 1] = {0};

    if (n > LONGEST)
        return false;
    for (size_t i = 0; i < n; i++)
        text[i] = (char)(word[i] >= 'A' && word[i] <= 'Z' ? word[i] + 32 : word[i]);
    while (low < high) {
        size_t middle = (low + high) / 2;
        int order = strcmp(text, words[middle]);

        if (order == 0)
            return true;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return false;
}
