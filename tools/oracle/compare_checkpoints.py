#!/usr/bin/env python3
"""Do two checkpoint folders mean the same to transformers?  Loads both in fp32 and compares logits and tensors.

    python tools/oracle/compare_checkpoints.py ORIGINAL WRITTEN

Exit status 0 when every logit is equal (WRITTEN kept the dtype) or within 1e-6. Development only.
"""
import sys

import torch
from transformers import AutoModelForCausalLM


def load(folder):
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    return model.eval()


def main():
    a, b = (load(folder) for folder in sys.argv[1:3])
    ids = torch.arange(100).remainder(a.config.vocab_size)[None]
    with torch.no_grad():
        diff = (a(input_ids=ids).logits - b(input_ids=ids).logits).abs().max().item()
    names = {n for n, _ in a.named_parameters()}
    assert names == {n for n, _ in b.named_parameters()}
    print(f"{sys.argv[2]}: {len(names)} tensors, largest difference of logits {diff:.3g}")
    return 0 if diff <= 1e-6 else 1


if __name__ == "__main__":
    sys.exit(main())
