/* Categories by utf8proc, and tables of the differences from HuggingFace's library.
 *
 * source: every code point in `tokenizers` 0.23.3, compared with utf8proc 2.8 (Unicode
 * 15). A utf8proc of a newer Unicode gives the same result: it already has what the
 * tables add, and they remove what they remove from any version.
 */
#include "text/classes.h"

#include "text/unicode.h"

#include <utf8proc.h>

#define SET(name)  (1u << UTF8PROC_CATEGORY_##name) /* a set of general categories */
#define MARKS      (SET(MN) | SET(MC) | SET(ME))
#define IN(ranges) kg_unicode_in(cp, ranges, sizeof(ranges) / sizeof *(ranges))

/* Numbers assigned since Unicode 15. */
static const struct kg_unicode_range NEW_NUMBERS[] = {
    {0x10D40, 0x10D49}, {0x116D0, 0x116E3}, {0x11BF0, 0x11BF9},
    {0x11DE0, 0x11DE9}, {0x16130, 0x16139}, {0x16D70, 0x16D79},
    {0x16FF4, 0x16FF6}, {0x1CCF0, 0x1CCF9}, {0x1E5F1, 0x1E5FA},
};

/* Letters, marks and digits of Unicode 16 that Unicode 15 lacks. */
static const struct kg_unicode_range NEW_WORDS[] = {
    {0x897, 0x897},     {0x1C89, 0x1C8A},   {0xA7CB, 0xA7CD},   {0xA7DA, 0xA7DC},
    {0x105C0, 0x105F3}, {0x10D40, 0x10D65}, {0x10D69, 0x10D6D}, {0x10D6F, 0x10D85},
    {0x10EC2, 0x10EC4}, {0x10EFC, 0x10EFC}, {0x11380, 0x11389}, {0x1138B, 0x1138B},
    {0x1138E, 0x1138E}, {0x11390, 0x113B5}, {0x113B7, 0x113C0}, {0x113C2, 0x113C2},
    {0x113C5, 0x113C5}, {0x113C7, 0x113CA}, {0x113CC, 0x113D3}, {0x113E1, 0x113E2},
    {0x116D0, 0x116E3}, {0x11BC0, 0x11BE0}, {0x11BF0, 0x11BF9}, {0x11F5A, 0x11F5A},
    {0x13460, 0x143FA}, {0x16100, 0x16139}, {0x16D40, 0x16D6C}, {0x16D70, 0x16D79},
    {0x18CFF, 0x18CFF}, {0x1CCF0, 0x1CCF9}, {0x1E5D0, 0x1E5FA}, {0x2EBF0, 0x2EE5D},
};
/* Other_Alphabetic that is neither letter nor mark, and the joiners. */
static const struct kg_unicode_range OTHER_WORDS[] = {
    {0x200C, 0x200D},   {0x24B6, 0x24E9},   {0x1F130, 0x1F149},
    {0x1F150, 0x1F169}, {0x1F170, 0x1F189},
};

/* Punctuation since Unicode 9, and two signs that were punctuation then. */
static const struct kg_unicode_range NEW_POINTS[] = {
    {0x61D, 0x61D},     {0x9FD, 0x9FD},     {0xA76, 0xA76},     {0xC77, 0xC77},
    {0xC84, 0xC84},     {0x1B7D, 0x1B7E},   {0x2E43, 0x2E4F},   {0x2E52, 0x2E5D},
    {0x10EAD, 0x10EAD}, {0x10F55, 0x10F59}, {0x10F86, 0x10F89}, {0x1144B, 0x1144F},
    {0x1145A, 0x1145B}, {0x1145D, 0x1145D}, {0x11660, 0x1166C}, {0x116B9, 0x116B9},
    {0x1183B, 0x1183B}, {0x11944, 0x11946}, {0x119E2, 0x119E2}, {0x11A3F, 0x11A46},
    {0x11A9A, 0x11A9C}, {0x11A9E, 0x11AA2}, {0x11B00, 0x11B09}, {0x11C41, 0x11C45},
    {0x11C70, 0x11C71}, {0x11EF7, 0x11EF8}, {0x11F43, 0x11F4F}, {0x11FFF, 0x11FFF},
    {0x12FF1, 0x12FF2}, {0x16E97, 0x16E9A}, {0x16FE2, 0x16FE2}, {0x1E95E, 0x1E95F},
};
static const struct kg_unicode_range OLD_POINTS[] = {{0x166D, 0x166D},
                                                     {0x111C9, 0x111C9}};

static const struct kg_unicode_range NEW_CONTROLS[] = {{0x110CD, 0x110CD},
                                                       {0x13430, 0x1343F}};

/* Ideographs by BERT's definition. */
static const struct kg_unicode_range IDEOGRAPHS[] = {
    {0x3400, 0x4DBF},   {0x4E00, 0x9FFF},   {0xF900, 0xFAFF},   {0x20000, 0x2A6DF},
    {0x2A700, 0x2B81F}, {0x2B920, 0x2CEAF}, {0x2F800, 0x2FA1F},
};

static const struct kg_unicode_range NMT_GONE[] = {
    {0x1, 0x8}, {0xB, 0xB}, {0xE, 0x1F}, {0x7F, 0x7F}, {0x8F, 0x8F}, {0x9F, 0x9F},
};
static const struct kg_unicode_range NMT_SPACES[] = {
    {0x9, 0xA},       {0xC, 0xD},       {0x1680, 0x1680}, {0x200B, 0x200F},
    {0x2028, 0x2029}, {0x2581, 0x2581}, {0xFEFF, 0xFEFF}, {0xFFFD, 0xFFFD},
};

/* Capital letters since Unicode 15; step: from the capital to the small letter. */
static const struct {
    uint32_t first, last;
    int32_t step;
} NEW_CAPITALS[] = {
    {0x1C89, 0x1C89, 1},      {0xA7CB, 0xA7CB, 0x264 - 0xA7CB},
    {0xA7CC, 0xA7CC, 1},      {0xA7CE, 0xA7CE, 1},
    {0xA7D2, 0xA7D2, 1},      {0xA7D4, 0xA7D4, 1},
    {0xA7DA, 0xA7DA, 1},      {0xA7DC, 0xA7DC, 0x19B - 0xA7DC},
    {0x10D50, 0x10D65, 0x20}, {0x16EA0, 0x16EB8, 0x1B},
};

bool kg_class_is_number(uint32_t cp)
{
    return kg_unicode_is_of(cp, SET(ND) | SET(NL) | SET(NO)) || IN(NEW_NUMBERS);
}

bool kg_class_is_punctuation(uint32_t cp)
{
    const uint32_t all = SET(PC) | SET(PD) | SET(PS) | SET(PE) | SET(PI) | SET(PF) |
                         SET(PO);

    if (cp < 0x80)
        return (cp >= '!' && cp <= '/') || (cp >= ':' && cp <= '@') ||
               (cp >= '[' && cp <= '`') || (cp >= '{' && cp <= '~');
    return kg_unicode_is_of(cp, all) ? !IN(NEW_POINTS) : IN(OLD_POINTS);
}

bool kg_class_is_mark(uint32_t cp) { return kg_unicode_is_of(cp, MARKS); }

bool kg_class_is_word(uint32_t cp)
{
    return kg_unicode_is_of(cp, MARKS | SET(ND) | SET(NL) | SET(PC)) ||
           kg_unicode_is_alpha(cp) || IN(OTHER_WORDS) || IN(NEW_WORDS);
}

static bool is_control(uint32_t cp)
{
    return (kg_unicode_is_of(cp, SET(CC)) && cp != '\t' && cp != '\n' && cp != '\r') ||
           (kg_unicode_is_of(cp, SET(CF)) && !IN(NEW_CONTROLS)) ||
           kg_unicode_is_of(cp, SET(CO));
}

/* ---- maps of characters ---- */

size_t kg_class_lower(char out[KG_CLASS_BYTES], uint32_t cp)
{
    size_t n = 0;
    uint32_t small = kg_unicode_lower(cp);

    for (size_t i = 0; i < sizeof NEW_CAPITALS / sizeof *NEW_CAPITALS; i++)
        if (cp >= NEW_CAPITALS[i].first && cp <= NEW_CAPITALS[i].last)
            small = (uint32_t)((int32_t)cp + NEW_CAPITALS[i].step);
    if (cp == 0x130) { /* the one capital letter whose small one is two characters */
        out[n++] = 'i';
        small = 0x307;
    }
    return n + kg_utf8_encode(out + n, small);
}

size_t kg_class_drop_marks(char out[KG_CLASS_BYTES], uint32_t cp)
{
    return kg_class_is_mark(cp) ? 0 : kg_utf8_encode(out, cp);
}

size_t kg_class_drop_nonspacing(char out[KG_CLASS_BYTES], uint32_t cp)
{
    return kg_unicode_is_of(cp, SET(MN)) ? 0 : kg_utf8_encode(out, cp);
}

size_t kg_class_clean(char out[KG_CLASS_BYTES], uint32_t cp)
{
    if (cp == 0 || cp == 0xFFFD || is_control(cp))
        return 0;
    return kg_utf8_encode(out, kg_unicode_is_space(cp) ? ' ' : cp);
}

size_t kg_class_space_cjk(char out[KG_CLASS_BYTES], uint32_t cp)
{
    if (!IN(IDEOGRAPHS))
        return kg_utf8_encode(out, cp);
    out[0] = ' ';
    size_t n = 1 + kg_utf8_encode(out + 1, cp);
    out[n] = ' ';
    return n + 1;
}

size_t kg_class_nmt(char out[KG_CLASS_BYTES], uint32_t cp)
{
    if (IN(NMT_GONE))
        return 0;
    return kg_utf8_encode(out, IN(NMT_SPACES) ? ' ' : cp);
}
