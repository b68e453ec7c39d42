"""Expected ids for tests/data/tokenizer, by HuggingFace's `tokenizers`.

Reads small/tokenizer.json (made by kedge's own trainer from corpus.txt; bpe_train_test.c makes it again), derives variants
that use the other parts of the format, and writes vectors.jsonl:
{"file", "text", "parse_special", "add_special", "ids"}.
"""
import copy
import json
import random
import sys
import unicodedata

from tokenizers import Tokenizer, normalizers

ROOT = "tests/data/tokenizer/"
R = random.Random(20260101)


def added(content, id, **kw):
    row = dict(id=id, content=content, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
    row.update(kw)
    return row


def variants(base):
    """name -> tokenizer.json"""
    n = len(base["model"]["vocab"])
    out = {"small/tokenizer.json": base}
    byte_level = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=True)

    v = copy.deepcopy(base)  # GPT-2: ByteLevel's own pattern, a space in front, no NFC, merges as pairs
    v["normalizer"] = None
    v["pre_tokenizer"] = dict(byte_level, add_prefix_space=True)
    v["model"]["merges"] = [m.split(" ") for m in v["model"]["merges"]]
    v["truncation"] = dict(direction="Right", max_length=4, strategy="LongestFirst", stride=0)
    out["gpt2_prefix.json"] = v

    v = copy.deepcopy(base)  # Llama 3: BOS and EOS by template, ignore_merges, digits in threes
    v["normalizer"] = None
    v["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    v["model"]["ignore_merges"] = True
    v["model"]["vocab"]["\u0120unmerged\u0120"] = n
    v["model"]["vocab"]["zebra"] = n + 1
    for t in v["added_tokens"]:
        t["id"] += 2
    bos, eos = "<|endoftext|>", "<|im_end|>"
    ids = {t["content"]: t["id"] for t in v["added_tokens"]}
    v["post_processor"] = dict(type="Sequence", processors=[byte_level, dict(
        type="TemplateProcessing",
        single=[dict(SpecialToken=dict(id=bos, type_id=0)), dict(Sequence=dict(id="A", type_id=0)),
                dict(SpecialToken=dict(id=eos, type_id=0))],
        pair=[dict(Sequence=dict(id="A", type_id=0)), dict(Sequence=dict(id="B", type_id=1))],
        special_tokens={t: dict(id=t, ids=[ids[t]], tokens=[t]) for t in (bos, eos)})])
    out["template.json"] = v

    v = copy.deepcopy(base)  # added tokens of all sorts, a literal split before the pattern
    v["added_tokens"] += [added("<mask>", n + 3, lstrip=True), added("<nl>", n + 4, rstrip=True),
                          added("<think>", n + 5, special=False), added("<think>x", n + 6, special=False),
                          added("e\u0301t\u00e9", n + 7, special=False, normalized=True),
                          added("|im", n + 8, special=False), added("two words", n + 9, special=False)]
    v["normalizer"] = dict(type="Sequence", normalizers=[dict(type="NFC")])
    v["pre_tokenizer"]["pretokenizers"].insert(0, dict(type="Split", pattern=dict(String="=="), behavior="Isolated",
                                                         invert=False))
    v["decoder"] = dict(type="Sequence", decoders=[byte_level])
    out["added.json"] = v
    return out


def known_to_both(text):
    """False where NFC of `tokenizers` (Unicode 9) differs from the standard's."""
    return normalizers.NFC().normalize_str(text) == unicodedata.normalize("NFC", text)


ASSIGNED = [c for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Co", "Cs")]
MARKS = [c for c in ASSIGNED if unicodedata.category(chr(c))[0] == "M"]
SPACES = [0x09, 0x0b, 0x20, 0x85, 0xa0, 0x1680, 0x180e, 0x2003, 0x2028, 0x202f, 0x3000, 0xfeff, 0x200b]
PIECES = ["'s", "'T", "'RE", "'ll", "'\u017f", "\r\n", "\n\n", " \n", "\t", "  ", "<|im_end|>", "<|im_start|>", "<|im",
          "<|endoftext|>", " <mask> ", "<nl> \n", "<think>", "<think>x", "\u00e9t\u00e9", "e\u0301te\u0301", "two words",
          "==", "===", "zebra", " unmerged ", "1234567", "3.14", "(a+b)", "!?", "...", "\u6c49\u5b57", "\u043f\u0440"]


def sample(words):
    out = []
    for _ in range(R.randrange(1, 25)):
        kind = R.randrange(6)
        if kind == 0:
            out.append(chr(R.choice(ASSIGNED)))
        elif kind == 1:
            out.append(chr(R.choice(SPACES)) * R.randrange(1, 3))
        elif kind == 2:
            out.append(R.choice("aeoukgnAEO") + "".join(chr(R.choice(MARKS)) for _ in range(R.randrange(1, 3))))
        elif kind == 3:
            out.append(R.choice(PIECES))
        else:
            out.append(R.choice(words) + R.choice(["", " ", " "]))
    return "".join(out)


def main():
    words = open(ROOT + "corpus.txt", encoding="utf-8").read().split(" ")
    base = json.load(open(ROOT + "small/tokenizer.json", encoding="utf-8"))
    with open(ROOT + "vectors.jsonl", "w", encoding="utf-8") as f:
        for name, text in variants(base).items():
            if name != "small/tokenizer.json":
                json.dump(text, open(ROOT + name, "w", encoding="utf-8"), ensure_ascii=False, indent=0)
            tok = Tokenizer.from_str(json.dumps(text))
            tok.no_truncation()
            count = 0
            while count < 120:
                s = sample(words)
                parse, add = R.random() < 0.5, R.random() < 0.5
                tok.encode_special_tokens = not parse
                if not known_to_both(s):
                    continue
                ids = tok.encode(s, add_special_tokens=add).ids
                f.write(json.dumps(dict(file=name, text=s, parse_special=parse, add_special=add, ids=ids)) + "\n")
                count += 1
    print("tokenizers vectors written", file=sys.stderr)


if __name__ == "__main__":
    main()
