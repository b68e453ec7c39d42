"""Every form of tokenizer.json that kedge reads, by HuggingFace's `tokenizers` (and tokenizer.model, by `sentencepiece`).

    python tools/oracle/make_tokenizer_forms.py [ROWS [FILE]]        (from the project's root; 24, tests/data/tokenizer/forms.jsonl)

Writes a line {"name", "model"} for every model, and then one for every form: {"form", "model" (a name), "normalizer",
"pre_tokenizer", "post_processor", "decoder", "added_tokens", "rows": [[text, parse_special, add_special, ids, decoded], ..]}.
The model `bytes` has the 256 bytes and nothing else, so its ids are the normalized text itself; with a ByteLevel that puts a
space in front of every piece they say where text was cut, too. With more than 100 rows, forms of large files are added.
src/text/forms_test.c reads the file; KEDGE_FORMS=FILE names another.
"""
import base64
import io
import json
import random
import sys
import unicodedata

import sentencepiece as spm
from sentencepiece import sentencepiece_model_pb2 as proto
from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers

ROOT = "tests/data/tokenizer/"
R = random.Random(20261123)
CORPUS = open(ROOT + "corpus.txt", encoding="utf-8").read()

# ---- characters and texts ----

ASSIGNED = [c for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Co", "Cs")]


def known(c):
    """False where marks or normal forms of `tokenizers` (Unicode 9) differ from the standard's of today."""
    s = chr(c)
    mark = unicodedata.category(s)
    stripped = normalizers.StripAccents().normalize_str("a" + s + "b") == "ab"
    bert = normalizers.BertNormalizer(False, False, True, False).normalize_str("a" + s + "b") == "ab"
    return (stripped == (mark[0] == "M") and bert == (mark == "Mn")
            and normalizers.NFKD().normalize_str(s) == unicodedata.normalize("NFKD", s))


KNOWN = [c for c in ASSIGNED if known(c)]
MARKS = [c for c in KNOWN if unicodedata.category(chr(c))[0] == "M"]
POINTS = [c for c in KNOWN if unicodedata.category(chr(c))[0] in "PS"]
NUMBERS = [c for c in KNOWN if unicodedata.category(chr(c))[0] == "N"]
SPACES = [0x09, 0x0a, 0x0b, 0x0d, 0x20, 0x20, 0x85, 0xa0, 0x1680, 0x180e, 0x2003, 0x2028, 0x202f, 0x3000, 0xfeff, 0x200b]
COMPAT = [c for c in KNOWN if unicodedata.decomposition(chr(c))]
HANGUL = [0x1100, 0x1161, 0x11a8, 0x11a7, 0xac00, 0xac01, 0x1175, 0x1112]
PIECES = ["'s", "don't", "\r\n", "  ", "   ", "\u2581", "\u2581\u2581", " \u2581", "==", "===", "a-b--c", "-", "--", "1234567",
          "3.14", "\u6c49\u5b57", "\u0130I\u0131", "\u1e9e\u00df", "e\u0301", "\u00e9", "\uff21\uff22", "\ufb01", "\u3331",
          "\U0001f468\u200d\U0001f469", "\U0001f1e9\U0001f1ea", "<s>", "</s>", "<unk>", "[UNK]", "[SEP]", "##a", "<0x0A>",
          "<word>", "x<word>", "<word>y", " <word> ", "<left>", "  <left>", "<right>", "<right>  ", "<norm>", "<NORM>", "foo",
          "football", " foo ", "FOO", "\u00bd", "\u2460", "\u24b6", "\u0e01\u0e33", "\uff76\uff9e", "\x00", "\x01", "\ufffd", "\u00ad",
          "unaffable", "!?", "...", ". , ! ?"]
WORDS = CORPUS.split(" ")
ALPHABET = sorted(set(CORPUS))


def pick(chars):
    return chr(R.choice(chars))


def sample():
    out = []
    for _ in range(R.randrange(0, 12)):
        kind = R.randrange(12)
        if kind == 0:
            out.append(pick(KNOWN))
        elif kind == 1:
            out.append(pick(SPACES) * R.randrange(1, 3))
        elif kind == 2:
            out.append(R.choice("aeoukgnAEO\u03b1\u0391") + "".join(pick(MARKS) for _ in range(R.randrange(1, 3))))
        elif kind in (3, 4):
            out.append(R.choice(PIECES))
        elif kind == 5:
            out.append(pick(POINTS) * R.randrange(1, 3))
        elif kind == 6:
            out.append("".join(pick(NUMBERS) for _ in range(R.randrange(1, 3))))
        elif kind == 7:
            out.append(pick(COMPAT) + R.choice(["", pick(MARKS)]))
        elif kind == 8 and R.random() < 0.3:
            out.append("".join(pick(HANGUL) for _ in range(3)))
        else:
            out.append(R.choice(WORDS) + R.choice(["", " ", " ", " "]))
    return "".join(out)


def texts(n):
    out = ["", " ", "hello", " hello ", "\u2581", "a  b"]
    while len(out) < n:
        out.append(sample())
    return out


# ---- models ----

def spelling():
    """ByteLevel's character for every byte."""
    out, n = {}, 0
    for b in range(256):
        visible = 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b <= 255
        out[b] = chr(b) if visible else chr(256 + n)
        n += not visible
    return out


def bpe(vocab, merges=(), unk=None, **more):
    return dict(dict(type="BPE", dropout=None, unk_token=unk, continuing_subword_prefix=None, end_of_word_suffix=None,
                     fuse_unk=False, byte_fallback=False, ignore_merges=False, vocab={t: i for i, t in enumerate(vocab)},
                     merges=[list(m) for m in merges]), **more)


MERGES = [("a", "n"), ("an", "d"), ("t", "h"), ("th", "e"), ("o", "u"), ("i", "n"), ("in", "g"), ("1", "2"), ("-", "-"),
          ("\u2581", "the"), ("\u2581", "\u2581"), ("\u2581", "a"), ("l", "l")]
CHARS = ["\u2581", " "] + [c for c in ALPHABET if c.isalnum() and c < "\u0100"] + list("-.=")


def by_char(front, **more):
    vocab = list(dict.fromkeys(front + CHARS + [a + b for a, b in MERGES]))
    return bpe(vocab, MERGES, **more)


def wordpiece(**more):
    words = sorted({w.lower() for w in WORDS if w.isalpha() and w.isascii()})[:150] + ["un", "##aff", "##able", "don", "t", "s"]
    letters = [c for c in ALPHABET if c.isalnum()] + list(".,!?'-\"$") + ["\u6c49", "\u00df", "\u0131"]
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"] + words + letters + ["##" + c for c in letters] + ["##ing", "##ed", "##er", "##s"]
    return dict(dict(type="WordPiece", unk_token="[UNK]", continuing_subword_prefix="##", max_input_chars_per_word=20,
                     vocab={t: i for i, t in enumerate(dict.fromkeys(vocab))}), **more)


RULES = [("e\u0301", "\u00e9"), ("\u00e9", "E"), ("\uff21", "A"), ("\uff21\u0301", "\u00c1"), ("\ufb01", "fi"), ("\u3331", "\u30d3\u30eb"),
         ("\u00bd", "1/2"), ("\t", " "), ("\n", " "), ("\r", " "), ("\u00a0", " "), ("\u3000", " "), ("\u200b", ""), ("\u00ad", ""),
         ("\u2460", "1"), ("\uff76\uff9e", "\u30ac"), ("\uff76", "\u30ab"), ("a\u0300", "\u00e0"), ("\u03b1\u0301", "\u03ac"), ("b\u0300", "b"),
         ("\u0130", "i"), ("==", "="), ("\u2581", "_"), ("...", "\u2026"), ("\u00df", "ss"), ("\ufb01\u0301", "x  y")]


def train(**more):
    rules = "/tmp/kedge_rules.tsv"
    with open(rules, "w") as f:
        for a, b in RULES:
            f.write(" ".join("%X" % ord(c) for c in a) + "\t" + " ".join("%X" % ord(c) for c in b) + "\n")
    out = io.BytesIO()
    args = dict(model_type="unigram", vocab_size=400, hard_vocab_limit=False, character_coverage=0.99, num_threads=1,
                minloglevel=2, normalization_rule_tsv=rules, remove_extra_whitespaces=True)
    args.update(more)
    if "normalization_rule_name" in args:
        del args["normalization_rule_tsv"]
    spm.SentencePieceTrainer.train(sentence_iterator=iter(CORPUS.split("\n")), model_writer=out, **args)
    model = proto.ModelProto()
    model.ParseFromString(out.getvalue())
    return model


def unigram(model, **more):
    return dict(dict(type="Unigram", unk_id=0, byte_fallback=False,
                     vocab=[["<unk>" if p.type == 2 else p.piece, round(p.score, 4)] for p in model.pieces]), **more)


# ---- forms ----

def byte_level(front=False, regex=False):
    return dict(type="ByteLevel", add_prefix_space=front, trim_offsets=True, use_regex=regex)


def seq(key, *parts):
    return dict(type="Sequence", **{key: list(parts)})


def split(pattern, behavior, invert=False, kind="Regex"):
    return dict(type="Split", pattern={kind: pattern}, behavior=behavior, invert=invert)


def added(content, id, **kw):
    return dict(dict(id=id, content=content, single_word=False, lstrip=False, rstrip=False, normalized=False, special=False), **kw)


def replace(pattern, content, kind="String"):
    return dict(type="Replace", pattern={kind: pattern}, content=content)


def metaspace(scheme=None, cut=None, **more):
    out = dict(type="Metaspace", replacement="\u2581")
    if scheme:
        out["prepend_scheme"] = scheme
    if cut is not None:
        out["split"] = cut
    return dict(out, **more)


BEHAVIORS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
BYTES = dict(model="bytes", decoder=byte_level())


def cutting(*parts):
    return dict(BYTES, pre_tokenizer=seq("pretokenizers", *parts, byte_level(front=True)))


def normalizing(*parts):
    return dict(BYTES, pre_tokenizer=byte_level(), normalizer=parts[0] if len(parts) == 1 else seq("normalizers", *parts))


def bert(**kw):
    return dict(dict(type="BertNormalizer", clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=True), **kw)


def cuts():
    yield "digits", cutting(dict(type="Digits", individual_digits=False))
    yield "digits_individual", cutting(dict(type="Digits", individual_digits=True))
    for b in BEHAVIORS:
        yield "punctuation_" + b, cutting(dict(type="Punctuation", behavior=b))
        for invert in (False, True):
            yield f"split_regex_{b}_{invert}", cutting(split(r"\s+|-|\p{N}", b, invert))
            yield f"split_string_{b}_{invert}", cutting(split("-", b, invert, "String"))
    yield "whitespace", cutting(dict(type="Whitespace"))
    yield "whitespace_split", cutting(dict(type="WhitespaceSplit"))
    yield "delimiter", cutting(dict(type="CharDelimiterSplit", delimiter="-"))
    yield "bert_cuts", cutting(dict(type="BertPreTokenizer"))
    yield "cuts_nested", cutting(dict(type="WhitespaceSplit"), seq("pretokenizers", split("=", "MergedWithNext", False, "String"),
                                                                  dict(type="Digits", individual_digits=True)))
    yield "smollm", dict(BYTES, pre_tokenizer=seq("pretokenizers", dict(type="Digits", individual_digits=True),
                                                  byte_level(regex=True)))
    for scheme in ("always", "first", "never"):
        for cut in (True, False):
            yield f"metaspace_{scheme}_{cut}", cutting(metaspace(scheme, cut))
    yield "metaspace_old", cutting(metaspace(add_prefix_space=True))
    yield "metaspace_old_never", cutting(metaspace(add_prefix_space=False, prepend_scheme="never"))
    yield "metaspace_behind_cut", cutting(split("=", "Isolated", False, "String"), metaspace("first", True))


def norms():
    for t in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt"):
        yield t.lower(), normalizing(dict(type=t))
    for left, right in ((True, True), (True, False), (False, True), (False, False)):
        yield f"strip_{left}_{right}", normalizing(dict(type="Strip", strip_left=left, strip_right=right))
    yield "replace_string", normalizing(replace("an", "<\u00e9>"))
    yield "replace_nothing", normalizing(replace(" ", ""))
    yield "replace_regex", normalizing(replace(" {2,}", "\u2581", "Regex"))
    yield "replace_class", normalizing(replace(r"[\p{L}]+(?=\p{N})|\s+", "#", "Regex"))
    yield "prepend", normalizing(dict(type="Prepend", prepend="\u2581"))
    yield "norms_nested", normalizing(dict(type="NFD"), seq("normalizers", dict(type="StripAccents"), dict(type="Lowercase")),
                                      dict(type="Strip", strip_left=True, strip_right=True), dict(type="Prepend", prepend="x"))
    yield "bert_norm", normalizing(bert())
    yield "bert_cased", normalizing(bert(lowercase=False))
    yield "bert_accents", normalizing(bert(lowercase=False, strip_accents=True))
    yield "bert_bare", normalizing(bert(clean_text=False, handle_chinese_chars=False, strip_accents=False))
    yield "precompiled", normalizing(dict(type="Precompiled", precompiled_charsmap=MAPS["small"]))
    yield "precompiled_none", normalizing(dict(type="Lowercase"), dict(type="Precompiled", precompiled_charsmap=MAPS["small"]))


def tokens():
    marks = [added("<word>", 256, single_word=True), added("<left>", 257, lstrip=True), added("<right>", 258, rstrip=True),
             added("<norm>", 259, normalized=True), added("<s>", 260, special=True), added("</s>", 261, special=True)]
    yield "added", dict(normalizing(dict(type="Lowercase")), added_tokens=marks)
    yield "added_single", dict(cutting(dict(type="WhitespaceSplit")), added_tokens=[
        added("foo", 256, single_word=True), added("\u6c49", 257, single_word=True), added("th", 258, single_word=True, lstrip=True)])
    yield "added_upper", dict(normalizing(dict(type="Lowercase")), added_tokens=[added("FOO", 256, normalized=True)])


def models_with_unknown():
    fallback = seq("decoders", replace("\u2581", " "), dict(type="ByteFallback"), dict(type="Fuse"))
    marks = dict(pre_tokenizer=metaspace("always", True), decoder=dict(type="Metaspace", replacement="\u2581",
                                                                       prepend_scheme="always", split=True))
    yield "lacks_bytes", dict(model="lacks", pre_tokenizer=byte_level(regex=True), decoder=byte_level())
    yield "lacks_bytes_unk", dict(model="lacks_unk", pre_tokenizer=byte_level(regex=True), decoder=byte_level())
    yield "lacks_bytes_fuse", dict(model="lacks_fuse", pre_tokenizer=byte_level(regex=True), decoder=byte_level())
    for name in ("chars", "chars_unk", "chars_fuse", "chars_whole"):
        yield name, dict(marks, model=name)
    yield "chars_bare", dict(model="chars_fuse")
    yield "chars_words", dict(model="chars_unk", pre_tokenizer=dict(type="Whitespace"))
    yield "some_bytes", dict(model="some_bytes", pre_tokenizer=metaspace("first", False), decoder=fallback)
    yield "some_bytes_unk", dict(model="some_bytes_unk", pre_tokenizer=metaspace("first", False), decoder=fallback)
    yield "some_bytes_fuse", dict(model="some_bytes_fuse", pre_tokenizer=metaspace("never", False), decoder=fallback)
    yield "gemma", dict(model="some_bytes_fuse", normalizer=replace(" ", "\u2581"), decoder=fallback,
                        pre_tokenizer=split(" ", "MergedWithPrevious", False, "String"))


def words():
    around = dict(type="BertProcessing", sep=["[SEP]", 3], cls=["[CLS]", 2])
    plain = dict(model="wordpiece", normalizer=bert(), pre_tokenizer=dict(type="BertPreTokenizer"), post_processor=around,
                 decoder=dict(type="WordPiece", prefix="##", cleanup=True),
                 added_tokens=[added(t, i, special=True) for i, t in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])])
    yield "bert", plain
    yield "bert_untidy", dict(plain, decoder=dict(type="WordPiece", prefix="##", cleanup=False), normalizer=bert(lowercase=False))
    yield "bert_no_decoder", dict(plain, decoder=None, post_processor=dict(type="RobertaProcessing", sep=["[SEP]", 3], cls=["[CLS]", 2],
                                                                          trim_offsets=True, add_prefix_space=True))
    yield "wordpiece_short", dict(model="wordpiece_short", pre_tokenizer=dict(type="WhitespaceSplit"))
    yield "wordpiece_other", dict(model="wordpiece_other", pre_tokenizer=dict(type="Whitespace"))


def pieces():
    marks = dict(pre_tokenizer=metaspace("always", True), decoder=metaspace("always", True))
    small = dict(type="Precompiled", precompiled_charsmap=MAPS["small"])
    fallback = seq("decoders", metaspace("always", True), dict(type="ByteFallback"))
    ends = dict(type="TemplateProcessing", single=[dict(Sequence=dict(id="A", type_id=0)), dict(SpecialToken=dict(id="</s>", type_id=0))],
                pair=[dict(Sequence=dict(id="A", type_id=0)), dict(Sequence=dict(id="B", type_id=0))],
                special_tokens={"</s>": dict(id="</s>", ids=[2], tokens=["</s>"])})
    special = [added("<unk>", 0, special=True), added("<s>", 1, special=True), added("</s>", 2, special=True)]
    yield "unigram", dict(marks, model="unigram", added_tokens=special)
    yield "unigram_bare", dict(model="unigram")
    yield "unigram_no_split", dict(model="unigram", pre_tokenizer=metaspace("first", False), decoder=metaspace("first", False))
    yield "t5", dict(marks, model="unigram", normalizer=small, post_processor=ends, added_tokens=special)
    yield "t5_new", dict(marks, model="unigram", added_tokens=special, post_processor=ends, normalizer=seq(
        "normalizers", small, dict(type="Strip", strip_left=False, strip_right=True), replace(" {2,}", "\u2581", "Regex")))
    yield "xlm_r", dict(model="unigram", added_tokens=special, decoder=metaspace("always", True), normalizer=seq(
        "normalizers", small, replace(" {2,}", " ", "Regex")), pre_tokenizer=seq("pretokenizers", dict(type="WhitespaceSplit"),
                                                                                 metaspace("always", True)))
    yield "albert", dict(marks, model="unigram", added_tokens=special, normalizer=seq(
        "normalizers", replace("``", '"'), replace("''", '"'), dict(type="NFKD"), dict(type="StripAccents"), dict(type="Lowercase"),
        small, replace(" {2,}", " ", "Regex")))
    yield "unigram_bytes", dict(model="unigram_bytes", pre_tokenizer=metaspace("always", True), decoder=fallback)


# ---- tokenizer.model ----

def sentencepieces(large):
    """name -> the bytes of a tokenizer.model"""
    out = {"sp_unigram": train(), "sp_bytes": train(byte_fallback=True, user_defined_symbols=["--", "foo"]),
           "sp_spaces": train(remove_extra_whitespaces=False, user_defined_symbols=["<norm>", "football"], normalization_rule_name="identity"),
           "sp_no_prefix": train(add_dummy_prefix=False)}
    out["sp_bpe"] = train(model_type="bpe")
    out["sp_bpe_bytes"] = train(model_type="bpe", byte_fallback=True)
    if large:
        out["full_sp_unigram"] = train(normalization_rule_name="nmt_nfkc")
        out["full_sp_cased"] = train(normalization_rule_name="nmt_nfkc_cf", byte_fallback=True)
    return out


# ---- the file ----

MAPS = {}


def all_models(small):
    byte = spelling()
    some = ["<0x%02X>" % b for b in range(256) if b % 7]
    lacks = [byte[b] for b in range(256) if b not in (0x0a, 0x35, 0xcc, 0xe2, 0xf0)]
    return {
        "bytes": bpe(list(byte.values())),
        "lacks": bpe(lacks + ["an", "the", "th"], [("a", "n"), ("t", "h"), ("th", "e")]),
        "lacks_unk": bpe(["<unk>"] + lacks, unk="<unk>"),
        "lacks_fuse": bpe(["<unk>"] + lacks, unk="<unk>", fuse_unk=True),
        "chars": by_char([]),
        "chars_unk": by_char(["<unk>"], unk="<unk>"),
        "chars_fuse": by_char(["<unk>"], unk="<unk>", fuse_unk=True),
        "chars_whole": by_char(["<unk>", "hello", "\u2581hello", "don't"], unk="<unk>", fuse_unk=True, ignore_merges=True),
        "some_bytes": by_char(some, byte_fallback=True),
        "some_bytes_unk": by_char(["<unk>"] + some, unk="<unk>", byte_fallback=True),
        "some_bytes_fuse": by_char(["<unk>"] + some, unk="<unk>", byte_fallback=True, fuse_unk=True),
        "wordpiece": wordpiece(),
        "wordpiece_short": wordpiece(max_input_chars_per_word=4),
        "wordpiece_other": wordpiece(continuing_subword_prefix="#"),
        "unigram": unigram(small),
        "unigram_bytes": unigram(train(byte_fallback=True), byte_fallback=True),
    }


def rows(text, n):
    tok = Tokenizer.from_str(text)
    for s in texts(n):
        parse, add = R.random() < 0.7, R.random() < 0.5
        tok.encode_special_tokens = not parse
        ids = tok.encode(s, add_special_tokens=add).ids
        yield [s, parse, add, ids, tok.decode(ids, skip_special_tokens=False)]


def main():
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 24
    path = sys.argv[2] if len(sys.argv) > 2 else ROOT + "forms.jsonl"
    small = train()
    MAPS["small"] = base64.b64encode(small.normalizer_spec.precompiled_charsmap).decode()
    models = all_models(small)
    with open(path, "w", encoding="utf-8") as f:
        def put(row):
            f.write(json.dumps(row, ensure_ascii=False, separators=(",", ":")).replace("\u2028", "\\u2028") + "\n")
        for name, model in models.items():
            put(dict(name=name, model=model))
        forms = [p for part in (cuts, norms, tokens, models_with_unknown, words, pieces) for p in part()]
        if n > 100:
            full = train(normalization_rule_name="nmt_nfkc").normalizer_spec.precompiled_charsmap
            MAPS["small"] = base64.b64encode(full).decode()
            forms += [("full_" + name, form) for part in (norms, pieces) for name, form in part()
                      if "Precompiled" in json.dumps(form)]
        for name, form in forms:
            parts = {k: form.get(k) for k in ("normalizer", "pre_tokenizer", "post_processor", "decoder")}
            parts["added_tokens"] = form.get("added_tokens", [])
            text = json.dumps(dict(parts, version="1.0", truncation=None, padding=None, model=models[form["model"]]))
            put(dict(form=name, model=form["model"], **parts, rows=list(rows(text, n))))
        for name, model in sentencepieces(n > 100).items():
            data = model.SerializeToString()
            sp = spm.SentencePieceProcessor(model_proto=data)
            found = [[s, False, False, sp.encode(s), None] for s in texts(n) if "\x00" not in s]
            put(dict(form=name, file=base64.b64encode(data).decode(), rows=found))


if __name__ == "__main__":
    main()
