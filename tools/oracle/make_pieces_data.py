"""SentencePiece and tiktoken data of tests/data/tokenizer, by `sentencepiece`, `tiktoken` and HuggingFace's `tokenizers`.

    python tools/oracle/make_pieces_data.py        (after make_tokenizer_vectors.py; from the project's root)

Trains a small SentencePiece BPE with byte_fallback on corpus.txt, converts it to tokenizer.json as transformers does (a
merge for every two pieces that are a piece together), writes small/tokenizer.json's tokens as tiktoken's ranks, and
pieces_vectors.jsonl: {"file", "text", "parse_special", "add_special", "ids", "decoded"}, where decoded is what the oracle
makes of the ids (sentencepiece leaves special tokens out, so its rows have none).
"""
import base64
import io
import json
import os
import random
import unicodedata

import sentencepiece as spm
import tiktoken
from sentencepiece import sentencepiece_model_pb2 as proto
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

ROOT = "tests/data/tokenizer/"
R = random.Random(20261121)
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def train():
    out = io.BytesIO()
    lines = open(ROOT + "corpus.txt", encoding="utf-8").read().split("\n")
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=out, model_type="bpe", vocab_size=620, byte_fallback=True,
        character_coverage=0.9995, normalization_rule_name="identity", remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True, split_digits=True, user_defined_symbols=["==", "\u2581\u2581\u2581"],
        num_threads=1, minloglevel=2)
    os.makedirs(ROOT + "spm", exist_ok=True)
    open(ROOT + "spm/tokenizer.model", "wb").write(out.getvalue())
    model = proto.ModelProto()
    model.ParseFromString(out.getvalue())
    return model


def merges(model):
    vocab = {p.piece: i for i, p in enumerate(model.pieces)}
    score = {p.piece: p.score for p in model.pieces if p.type == 1}
    out = []
    for piece, s in score.items():
        cuts = [(piece[:i], piece[i:], s) for i in range(1, len(piece)) if piece[:i] in score and piece[i:] in score]
        out += sorted(cuts, key=lambda c: (vocab[c[0]], vocab[c[1]]))
    return [(a, b) for a, b, _ in sorted(out, key=lambda c: (c[2], len(c[0]), len(c[1])), reverse=True)]


def converted(model, normalizer, pre_tokenizer, decoder, ignore_merges=False):
    vocab = {p.piece: i for i, p in enumerate(model.pieces)}
    tok = Tokenizer(models.BPE(vocab=vocab, merges=merges(model), byte_fallback=True, fuse_unk=True, unk_token="<unk>",
                               ignore_merges=ignore_merges))
    if normalizer:
        tok.normalizer = normalizer
    if pre_tokenizer:
        tok.pre_tokenizer = pre_tokenizer
    tok.decoder = decoder
    tok.add_special_tokens([AddedToken(t, normalized=False) for t in ("<unk>", "<s>", "</s>")])
    tok.add_tokens([AddedToken("<norm>", normalized=True),
                    AddedToken("<strip>", lstrip=True, rstrip=True, normalized=False, special=True)])
    tok.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tok


def variants(model):
    fallback = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    stripped = decoders.Sequence(fallback + [decoders.Strip(" ", 1, 0)])

    def metaspace(scheme, split):
        return pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme=scheme, split=split)
    prepend = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    return {
        "spm_legacy.json": converted(model, prepend, None, stripped),
        "spm_first.json": converted(model, None, metaspace("first", False), stripped, ignore_merges=True),
        "spm_always.json": converted(model, normalizers.NFC(), metaspace("always", True), stripped),
        "spm_never.json": converted(model, None, metaspace("never", True), decoders.Sequence(fallback)),
    }


def ranks():
    """The tokens of small/tokenizer.json: its ids are the order of its merges."""
    spelled = {}
    n = 0
    for b in range(256):
        visible = 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b <= 255
        spelled[chr(b) if visible else chr(256 + n)] = b
        n += not visible
    text = json.load(open(ROOT + "small/tokenizer.json", encoding="utf-8"))
    special = {t["content"]: t["id"] for t in text["added_tokens"]}
    return {bytes(spelled[c] for c in token): id for token, id in text["model"]["vocab"].items()
            if token not in special}, special


def write_tiktoken(table, special):
    os.makedirs(ROOT + "tiktoken", exist_ok=True)
    with open(ROOT + "tiktoken/tokenizer.model", "wb") as f:
        for token, rank in table.items():
            f.write(base64.b64encode(token) + b" %d\n" % rank)
    added = {str(id): dict(content=t, lstrip=False, normalized=False, rstrip=False, single_word=False, special=True)
             for t, id in special.items()}
    config = dict(added_tokens_decoder=added, bos_token="<|endoftext|>", eos_token="<|im_end|>")
    json.dump(config, open(ROOT + "tiktoken/tokenizer_config.json", "w"), indent=1)


ASSIGNED = [c for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Co", "Cs")]
PIECES = ["  ", "   ", "     ", "\n", "\t", "\u2581", "\u2581\u2581", " \u2581", "==", "===", "<s>", "</s>", "<norm>",
          " <norm> ", "<strip>", " <strip> \n", "<unk>", "<0x0A>", "\U0001f999", "e\u0301", "1234", "\r\n", "<|im_end|>"]


def sample(words):
    out = []
    for _ in range(R.randrange(0, 14)):
        kind = R.randrange(6)
        if kind == 0:
            out.append(chr(R.choice(ASSIGNED)))
        elif kind == 1:
            out.append(R.choice(PIECES))
        else:
            out.append(R.choice(words) + R.choice(["", " ", " "]))
    return "".join(out)


def texts(n, keep):
    words = open(ROOT + "corpus.txt", encoding="utf-8").read().split(" ")
    out = ["", " ", " hello", "hello"]
    while len(out) < n:
        s = sample(words)
        if keep(s):
            out.append(s)
    return out


def row(f, file, text, parse, add, ids, decoded):
    f.write(json.dumps(dict(file=file, text=text, parse_special=parse, add_special=add, ids=ids, decoded=decoded)) + "\n")


def main():
    model = train()
    table, special = ranks()
    write_tiktoken(table, special)
    sp = spm.SentencePieceProcessor(model_file=ROOT + "spm/tokenizer.model")
    enc = tiktoken.Encoding("small", pat_str=LLAMA3, mergeable_ranks=table, special_tokens=special)
    with open(ROOT + "pieces_vectors.jsonl", "w", encoding="utf-8") as f:
        for name, tok in variants(model).items():
            tok.save(ROOT + name, pretty=False)
            known = (lambda s: normalizers.NFC().normalize_str(s) == unicodedata.normalize("NFC", s))
            for s in texts(80, known):
                parse, add = R.random() < 0.7, R.random() < 0.5
                tok.encode_special_tokens = not parse
                ids = tok.encode(s, add_special_tokens=add).ids
                row(f, name, s, parse, add, ids, tok.decode(ids, skip_special_tokens=False))
        for s in texts(80, lambda s: True):
            row(f, "spm", s, False, False, sp.encode(s), sp.decode(sp.encode(s)))
        for s in texts(80, lambda s: True):
            parse = R.random() < 0.5
            ids = enc.encode(s, allowed_special="all" if parse else set(), disallowed_special=())
            row(f, "tiktoken", s, parse, False, ids, enc.decode(ids))


if __name__ == "__main__":
    main()
