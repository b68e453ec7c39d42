"""Writes tests/data/gguf: quants.gguf has, for every type that kedge reads, a tensor of random blocks, and beside it
NAME.f32, what the `gguf` package makes of them; and `weights`, with the blocks NAME.of that it makes of those. Usage: make_gguf.py (needs gguf 0.19 and numpy)."""

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf import GGUFWriter, dequantize, quantize
from gguf.constants import GGML_QUANT_SIZES

TYPES = [T.F16, T.BF16, T.Q8_0, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q2_K, T.Q3_K, T.Q4_K, T.Q5_K, T.Q6_K, T.IQ4_NL,
         T.IQ4_XS, T.MXFP4]
# where a block has its halves: their exponents are kept in the range of weights
HALVES = {T.Q8_0: [0], T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q2_K: [80, 82], T.Q3_K: [108],
          T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208], T.IQ4_NL: [0], T.IQ4_XS: [0], T.F16: [0]}


def blocks(rng, kind):
    values, size = GGML_QUANT_SIZES[kind]
    n = 512 // values
    x = rng.integers(0, 256, (n, size), dtype=np.uint8)
    for at in HALVES.get(kind, []):
        scale = (rng.standard_normal(n) * 10.0 ** rng.integers(-7, 1, n)).astype(np.float16)
        x[:, at : at + 2] = scale.view(np.uint8).reshape(n, 2)
    if kind == T.BF16:
        x[:, 1] = x[:, 1] & 0x80 | 0x3F
    if kind == T.MXFP4:
        x[0, 0], x[1, 0], x[2, 0] = 0, 1, 2
        x[3:, 0] = rng.integers(100, 140, n - 3)
    return x.reshape(2, -1)


def main():
    rng = np.random.default_rng(3)
    w = GGUFWriter("tests/data/gguf/quants.gguf", "llama")
    w.add_uint32("llama.block_count", 1)
    for kind in TYPES:
        x = blocks(rng, kind)
        w.add_tensor(kind.name, x, raw_dtype=kind)
        w.add_tensor(kind.name + ".f32", dequantize(x, kind).astype(np.float32))
    weights = (rng.standard_normal((4, 256)) * 0.1).astype(np.float32)
    weights[1, :32] = 0
    weights[2] = np.round(weights[2] * 64) / 64  # ties
    w.add_tensor("weights", weights)
    for kind in (T.Q8_0, T.Q4_0):
        w.add_tensor(kind.name + ".of", quantize(weights, kind), raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


main()
