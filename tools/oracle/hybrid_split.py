#!/usr/bin/env python3
"""Chooses how a hybrid joins its two rankings on one part of the questions, and tells what that finds on the other.

    hybrid_split.py WORDS VECTORS QUESTIONS

WORDS and VECTORS are what `kedge search query --kind bm25|dense --topk 100` answers to QUESTIONS (JSON lines with id,
question, and supporting_docs or golden_answers), one line each. A question is of the part that settings are chosen on when
the SHA-256 of its id is even, else of the part that is reported. Python's standard library alone; docs/search.md has the
commands and what they printed.
"""
import hashlib
import json
import re
import string
import sys

DEPTH = 100
CONSTANT = 60  # of reciprocal rank, as kedge has it
# what kedge can be told, its defaults first
SETTINGS = [("rank", 0.5)] + [(f, i / 10) for f in ("rank", "score") for i in range(1, 10) if (f, i) != ("rank", 5)]


def normal(text):
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def judge(question):
    """Whether a passage is right: it is a support, or holds an answer. And how many there are to find."""
    if "supporting_docs" in question:
        docs = set(question["supporting_docs"])
        return (lambda p: p["id"] in docs), len(docs)
    golds = [normal(g) for g in question["golden_answers"]]
    return (lambda p: any(g in normal(p["contents"]) for g in golds)), 1


def stretched(scores):
    low, high = min(scores, default=0), max(scores, default=0)
    return [(s - low) / (high - low) if high > low else 1.0 for s in scores]


def parts_of(ranking, fusion):
    if fusion == "score":
        return stretched([p["score"] for p in ranking])
    return [1 / (CONSTANT + i + 1) for i in range(len(ranking))]


def joined(words, vectors, fusion, weight):
    total = {}
    for ranking, part in ((words, 1 - weight), (vectors, weight)):
        for p, x in zip(ranking, parts_of(ranking, fusion)):
            total[p["id"]] = total.get(p["id"], 0) + part * x
    place = {p["id"]: p for p in words + vectors}
    return [place[i] for i in sorted(total, key=lambda i: (-total[i], i))]


def share(rows, rank, k):
    """Of the questions, those with something right among the first k."""
    return sum(any(p["right"] for p in rank(r)[:k]) for r, _ in rows) / len(rows)


def recall(rows, rank, k):
    """Of all that is right, what is among the first k: supports, or one answer a question."""
    return sum(min(sum(p["right"] for p in rank(r)[:k]), n) / n for r, n in rows) / len(rows)


def read(path):
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def halves_of(questions, found):
    """Of each question both rankings, with what is right in them, and how much there is."""
    halves = ([], [])
    for q, *rankings in zip(questions, *found):
        right, n = judge(q)
        marked = [[dict(p, right=right(p)) for p in a["passages"][:DEPTH]] for a in rankings]
        halves[int(hashlib.sha256(q["id"].encode()).hexdigest(), 16) % 2].append((marked, n))
    return halves


def main(words, vectors, questions):
    questions = [q for q in read(questions) if q.get("answer_in_retrieved_docs", True)]
    found = [read(path) for path in (words, vectors)]
    if not len(questions) == len(found[0]) == len(found[1]):
        sys.exit(f"expected {len(questions)} answers of both, found {len(found[0])} and {len(found[1])}")
    halves = halves_of(questions, found)

    def hybrid(fusion, weight):
        return lambda r: joined(r[0], r[1], fusion, weight)

    # the most found among 3, then among 10; of equal ones the first, so the default
    best = max(SETTINGS, key=lambda s: (share(halves[0], hybrid(*s), 3), recall(halves[0], hybrid(*s), 10)))
    rows = [("bm25", lambda r: r[0]), ("dense", lambda r: r[1])]
    rows += [(f"hybrid --fusion {f} --weight {x}", hybrid(f, x)) for f, x in dict.fromkeys([SETTINGS[0], best])]
    print(f"{len(halves[0])} questions to choose on, {len(halves[1])} to report")
    for label, rank in rows:
        print(f"{label}: " + "; ".join(
            f"{name} {share(half, rank, 3):.3f} among 3, {recall(half, rank, 10):.3f} of all among 10"
            for name, half in zip(("chosen on", "reported"), halves)))


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("expected WORDS VECTORS QUESTIONS")
    main(*sys.argv[1:])
