#!/usr/bin/env python3
"""What PEFT and transformers compute with adapters that kedge wrote, in fp32 on a CPU.

    python tools/oracle/make_peft_reference.py tests/data/peft [NAME ...]

A folder NAME, or NAME.CASE, holds `adapter/`, a folder as kedge writes it, of the base tests/data/reference/NAME. PEFT loads it as
it stands; beside it are written
    logprobs.json      of the sequences of the base's reference.json: each token's log-prob, and the mean NLL of all
    grads.safetensors  the gradient of that NLL for every A and B, by the names that adapter_model.safetensors has
Development only: nothing here is needed to build, run or test kedge.
"""
import json
import os
import sys
import warnings

import torch
from peft import PeftModel
from safetensors.torch import save_file

from reference_models import load, log_probs


def make(name, out):
    folder = os.path.join(out, name)
    model, seqs = load(f"tests/data/reference/{name.split('.')[0]}")
    model = PeftModel.from_pretrained(model, os.path.join(folder, "adapter"), is_trainable=True).eval()
    rows = [log_probs(model, s) for s in seqs]
    nll = -torch.cat(rows).mean()
    nll.backward()
    grads = {n.replace(".default.", "."): p.grad.contiguous() for n, p in model.named_parameters() if p.requires_grad}
    save_file(grads, os.path.join(folder, "grads.safetensors"))
    with open(os.path.join(folder, "logprobs.json"), "w") as f:
        json.dump({"logprobs": [[round(x, 9) for x in r.tolist()] for r in rows], "nll": nll.item()}, f)
        f.write("\n")
    print(name, nll.item(), len(grads))


def main():
    warnings.simplefilter("error", UserWarning)  # PEFT says by warnings which keys of a folder it did not find or know
    torch.set_num_threads(1)
    out = sys.argv[1] if len(sys.argv) > 1 else "tests/data/peft"
    for name in sys.argv[2:] or sorted(os.listdir(out)):
        if os.path.isdir(os.path.join(out, name)):
            make(name, out)


if __name__ == "__main__":
    main()
