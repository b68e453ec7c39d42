#!/usr/bin/env python3
"""Tiny random encoders and the vectors of their texts, for the tests of guests/retriever/encoder; or the vectors of a real folder.

    tools/oracle/make_encoder.py tests/data/encoder            # writes the folders anew
    tools/oracle/make_encoder.py --embed DIR < texts           # a line of text in, {"vector": [...]} out

The vectors are numpy's, in double, written from the papers and not from kedge; the ids are those of HuggingFace's
`tokenizers` (numpy, tokenizers, safetensors).
"""
import json
import math
import os
import sys

import numpy as np
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

ERF = np.vectorize(math.erf, otypes=[np.float64])


def norm(x, w, b, eps):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps) * w + b


class Encoder:
    def __init__(self, folder):
        self.config = json.load(open(f"{folder}/config.json"))
        tensors = load_file(f"{folder}/model.safetensors")
        self.w = {k.removeprefix("bert.").removeprefix("roberta."): v.astype(np.float64) for k, v in tensors.items()}
        self.tok = Tokenizer.from_file(f"{folder}/tokenizer.json")
        self.tok.no_padding()
        pooling = json.load(open(f"{folder}/1_Pooling/config.json"))
        self.cls = pooling["pooling_mode_cls_token"]
        limits = f"{folder}/sentence_bert_config.json"
        self.max = json.load(open(limits))["max_seq_length"] if os.path.exists(limits) else 512
        self.tok.enable_truncation(self.max)
        self.first = 0 if self.config["model_type"] == "bert" else self.config["pad_token_id"] + 1

    def linear(self, x, name):
        return x @ self.w[name + ".weight"].T + self.w[name + ".bias"]

    def normed(self, x, name):
        return norm(x, self.w[name + ".weight"], self.w[name + ".bias"], self.config["layer_norm_eps"])

    def attention(self, x, at):
        heads = self.config["num_attention_heads"]
        q, k, v = (self.linear(x, f"{at}.self.{n}") for n in ("query", "key", "value"))
        hd = q.shape[1] // heads
        out = []
        for h in range(heads):
            part = slice(h * hd, (h + 1) * hd)
            s = q[:, part] @ k[:, part].T / math.sqrt(hd)
            p = np.exp(s - s.max(-1, keepdims=True))
            out.append(p / p.sum(-1, keepdims=True) @ v[:, part])
        return self.linear(np.concatenate(out, -1), f"{at}.output.dense")

    def embed(self, text):
        ids = self.tok.encode(text).ids
        x = self.w["embeddings.word_embeddings.weight"][ids]
        x = x + self.w["embeddings.position_embeddings.weight"][self.first : self.first + len(ids)]
        x = self.normed(x + self.w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
        for layer in range(self.config["num_hidden_layers"]):
            at = f"encoder.layer.{layer}"
            x = self.normed(x + self.attention(x, f"{at}.attention"), f"{at}.attention.output.LayerNorm")
            h = self.linear(x, f"{at}.intermediate.dense")
            h = h * (1 + ERF(h / math.sqrt(2))) / 2
            x = self.normed(x + self.linear(h, f"{at}.output.dense"), f"{at}.output.LayerNorm")
        y = x[0] if self.cls else x.mean(0)
        return y / np.linalg.norm(y)


WORDS = "the a cat dog sat on mat big red house ##s ##ing play run ran of king and query passage : . , ?".split()
LETTERS = [c for c in "abcdefghijklmnopqrstuvwxyz"] + ["##" + c for c in "abcdefghijklmnopqrstuvwxyz"]


def tokenizer(specials):
    pad, unk, cls, sep = specials
    vocab = {w: i for i, w in enumerate(dict.fromkeys(specials + WORDS + LETTERS))}
    tok = Tokenizer(models.WordPiece(vocab, unk_token=unk))
    tok.normalizer = normalizers.BertNormalizer(lowercase=True)
    tok.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tok.decoder = decoders.WordPiece()
    tok.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}", pair=f"{cls} $A {sep} $B {sep}", special_tokens=[(t, vocab[t]) for t in (cls, sep)]
    )
    tok.add_special_tokens(specials)
    return tok, len(vocab)


def tensors(c, rng):
    D, F = c["hidden_size"], c["intermediate_size"]

    def draw(*shape):
        return (rng.standard_normal(shape) / math.sqrt(shape[-1])).astype(np.float32)

    w = {
        "embeddings.word_embeddings.weight": draw(c["vocab_size"], D) * 2,
        "embeddings.position_embeddings.weight": draw(c["max_position_embeddings"], D),
        "embeddings.token_type_embeddings.weight": draw(c["type_vocab_size"], D),
    }

    def linear(name, out, into):
        w[name + ".weight"], w[name + ".bias"] = draw(out, into) * 2, draw(out)

    def layer_norm(name):
        w[name + ".weight"], w[name + ".bias"] = 1 + draw(D), draw(D)

    layer_norm("embeddings.LayerNorm")
    for i in range(c["num_hidden_layers"]):
        at = f"encoder.layer.{i}"
        for n in ("query", "key", "value"):
            linear(f"{at}.attention.self.{n}", D, D)
        linear(f"{at}.attention.output.dense", D, D)
        layer_norm(f"{at}.attention.output.LayerNorm")
        linear(f"{at}.intermediate.dense", F, D)
        linear(f"{at}.output.dense", D, F)
        layer_norm(f"{at}.output.LayerNorm")
    return w


def put(path, value):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as f:
        f.write(json.dumps(value, indent=1) + "\n")


def write(folder, model_type, specials, pooling, dtype, prefix, rng):
    tok, vocab = tokenizer(specials)
    config = dict(
        model_type=model_type, hidden_act="gelu", hidden_size=8, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=12, vocab_size=vocab, max_position_embeddings=24, type_vocab_size=2 if not prefix else 1,
        layer_norm_eps=1e-12 if not prefix else 1e-5, pad_token_id=specials.index(specials[0]),
        position_embedding_type="absolute",
    )
    put(f"{folder}/config.json", config)
    put(f"{folder}/1_Pooling/config.json", {"word_embedding_dimension": 8, "pooling_mode_cls_token": pooling == "cls",
        "pooling_mode_mean_tokens": pooling == "mean", "pooling_mode_max_tokens": False})
    put(f"{folder}/modules.json", [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}])
    put(f"{folder}/sentence_bert_config.json", {"max_seq_length": 16, "do_lower_case": False})
    tok.save(f"{folder}/tokenizer.json", pretty=False)
    w = {prefix + k: v.astype(dtype) for k, v in tensors(config, rng).items()}
    save_file(w, f"{folder}/model.safetensors")
    encoder = Encoder(folder)
    with open(f"{folder}/golden.jsonl", "w") as f:
        for text in TEXTS:
            f.write(json.dumps({"text": text, "vector": [float(np.float32(v)) for v in encoder.embed(text)]}) + "\n")


TEXTS = [
    "The cat sat on the mat.",
    "a dog",
    "",
    "query: Playing, running; ZEBRA?",
    "The big red house of the king and the dog and the cat and the mat and so on and on until it is too long.",
    "caf\u00e9 \u65e5\u672c",
]


def main():
    if sys.argv[1] == "--embed":
        encoder = Encoder(sys.argv[2])
        for line in sys.stdin:
            print(json.dumps({"vector": [float(v) for v in encoder.embed(line.rstrip("\n"))]}))
        return
    rng = np.random.default_rng(18)
    out = sys.argv[1]
    write(f"{out}/bert", "bert", ["[PAD]", "[UNK]", "[CLS]", "[SEP]"], "mean", np.float32, "", rng)
    write(f"{out}/xlm-roberta", "xlm-roberta", ["<pad>", "<unk>", "<s>", "</s>"], "cls", np.float16, "roberta.", rng)


main()
