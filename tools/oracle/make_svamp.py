"""Writes the files of recipes/svamp out of SVAMP (Patel et al. 2021, MIT licence): its problems of two numbers and one
operation, with new numbers.

    python3 tools/oracle/make_svamp.py SVAMP.jsonl recipes/svamp

SVAMP.jsonl has "problem" and "answer" a line. A problem is used when exactly one expression of two of its numbers has
its answer. 200 of them are held out whole; the others appear with VARIANTS sets of numbers each, drawn from 2 to 9 (a
dividend is a product of two of these). A solution is the expression. Of the training solutions FAULTY are wrong on
purpose: another expression of the problem's numbers. The answers are right.
"""

import itertools
import json
import pathlib
import random
import re
import subprocess
import sys

HELD_OUT, VARIANTS, FAULTY, LARGEST = 200, 20, 0.3, 99
NUMBER = re.compile(r"\d+")


def value(op, x, y):
    if op == "/":
        return x // y if y and x % y == 0 else None
    return {"+": x + y, "-": x - y, "*": x * y}[op]


def expression(numbers, answer):
    """(i, op, j) when it is the only one of this value, else None."""
    found = [
        (i, op, j)
        for i, j in itertools.permutations(range(len(numbers)), 2)
        for op in "+-*/"
        if not (op in "+*" and i > j) and value(op, numbers[i], numbers[j]) == answer
    ]
    return found[0] if len(found) == 1 else None


def usable(row):
    if re.search(r"\d[.,]\d", row["problem"]) or not NUMBER.fullmatch(row["answer"]):
        return None
    numbers = [int(x) for x in NUMBER.findall(row["problem"])]
    if len(set(numbers)) < len(numbers) or max(numbers + [int(row["answer"])]) > 999:
        return None
    return expression(numbers, int(row["answer"]))


def variant(rng, row, e):
    """The problem with other numbers, or None when none are found."""
    i, op, j = e
    old = [int(x) for x in NUMBER.findall(row["problem"])]
    for _ in range(200):
        new = [x if x <= 1 else rng.randint(2, 9) for x in old]
        if op == "/":
            new[i] = new[j] * rng.randint(2, 9)
        answer = value(op, new[i], new[j])
        if len(set(new)) == len(new) and max(new) <= LARGEST and answer is not None and answer >= 0:
            if expression(new, answer) == e:
                return record(row, e, new, answer)
    return None


def record(row, e, numbers, answer):
    i, op, j = e
    left = iter(numbers)
    question = NUMBER.sub(lambda _: str(next(left)), row["problem"])
    return {"question": question, "answer": str(answer), "solution": f" {numbers[i]} {op} {numbers[j]}"}


def spoil(rng, r):
    numbers = NUMBER.findall(r["question"])
    while True:
        a, b = rng.sample(numbers, 2)
        wrong = f' {a} {rng.choice("+-*/")} {b}'
        if wrong != r["solution"]:
            return wrong


def variants(rng, rows, n):
    made = [variant(rng, row, e) for row, e in rows for _ in range(n)]
    return list({r["question"]: r for r in made if r}.values())


def write(path, rows, packed=False):
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    if packed:
        subprocess.run(["zstd", "-19", "-q", "-f", "--rm", str(path)], check=True)


def main(source, out):
    rng = random.Random(1)
    rows = [json.loads(line) for line in open(source)]
    rows = [(row, e) for row, e in ((row, usable(row)) for row in rows) if e]
    rng.shuffle(rows)
    held_out, known = rows[:HELD_OUT], rows[HELD_OUT:]
    train = variants(rng, known, VARIANTS)
    seen = {r["question"] for r in train}
    numbers = [r for r in variants(rng, known, 1) if r["question"] not in seen]
    stories = variants(rng, held_out, 2)
    for r in train:
        if rng.random() < FAULTY:
            r["solution"] = spoil(rng, r)
    for rows in train, numbers, stories:
        rng.shuffle(rows)
    out.mkdir(parents=True, exist_ok=True)
    write(out / "train.jsonl", train, packed=True)
    write(out / "new-numbers.jsonl", [{k: r[k] for k in ("question", "answer")} for r in numbers])
    write(out / "new-stories.jsonl", [{k: r[k] for k in ("question", "answer")} for r in stories])
    print(len(rows), len(known), "stories;", len(train), len(numbers), len(stories), "problems")


main(sys.argv[1], pathlib.Path(sys.argv[2]))
