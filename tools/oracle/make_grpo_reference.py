#!/usr/bin/env python3
"""GRPO with a KL to an anchor on the models of make_reference.py, by torch's autograd in fp32 on a CPU.

    python tools/oracle/make_grpo_reference.py tests/data/reference [NAME ...]

Beside what is there it writes into each folder
    grpo.json               the batch (old and anchor's log-probs, advantages), and of five AdamW steps the losses before each and
                            after the last, and the norms of the gradients
    grpo_grads.safetensors  the gradient of the first loss, of every tensor (of the folders in GRADS alone)

The two sequences of reference.json are two answers to one prompt of three tokens. Of a token with log-probs p of the policy at
temperature 0.8, o of the old policy and q of the anchor, r = exp(p - o) and w = exp(q - p):
    -min(r A, clip(r, 0.8, 1.2) A) + 0.1 (w - log w - 1),      a mean over the tokens of an answer, then over answers.
o and q are p and noise, so that some tokens are clipped; nothing is clamped (kl.clamp=false). Development only: nothing here is needed to build, run or test kedge.
"""
import json
import os
import sys

import torch
from safetensors.torch import save_file

from reference_models import load, log_probs

PROMPT, TEMPERATURE, CLIP, BETA = 3, 0.8, 0.2, 0.1
ADVANTAGE = (0.8, -0.6)
STEPS, LR = 5, 3e-3
ADAMW = dict(lr=LR, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
GRADS = ("mistral", "gemma2", "olmoe")


def answer(model, seq):
    """Log-probs of the tokens behind the prompt."""
    return log_probs(model, seq, PROMPT, TEMPERATURE)


def loss_of(model, seqs, old, anchor):
    total = 0.0
    for seq, o, q, a in zip(seqs, old, anchor, ADVANTAGE):
        p = answer(model, seq)
        ratio, d = torch.exp(p - o), q - p
        gain = torch.minimum(ratio * a, torch.clamp(ratio, 1 - CLIP, 1 + CLIP) * a)
        total = total + (BETA * (torch.exp(d) - d - 1) - gain).mean()
    return total / len(seqs)


def make(name, out):
    folder = os.path.join(out, name)
    model, seqs = load(folder)
    noise = torch.Generator().manual_seed(7)
    with torch.no_grad():
        old, anchor = ([(p + 0.25 * torch.randn(p.shape, generator=noise, dtype=torch.float64)) for p in
                        (answer(model, s) for s in seqs)] for _ in range(2))
    optimizer = torch.optim.AdamW(model.parameters(), **ADAMW)
    losses, norms = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, seqs, old, anchor)
        loss.backward()
        if step == 0 and name in GRADS:
            save_file({n: p.grad.clone().contiguous() for n, p in model.named_parameters()},
                      os.path.join(folder, "grpo_grads.safetensors"))
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        losses.append(loss.item())
        optimizer.step()
    losses.append(loss_of(model, seqs, old, anchor).item())
    with open(os.path.join(folder, "grpo.json"), "w") as f:
        rounded = [[[round(x, 9) for x in t.tolist()] for t in all_of] for all_of in (old, anchor)]
        json.dump({"advantage": ADVANTAGE, "old_logp": rounded[0], "anchor_logp": rounded[1], "losses": losses,
                   "grad_norms": norms}, f)
        f.write("\n")
    print(name, losses, norms)


def main():
    torch.set_num_threads(1)
    out = sys.argv[1] if len(sys.argv) > 1 else "tests/data/reference"
    for name in sys.argv[2:] or sorted(os.listdir(out)):
        if os.path.isdir(os.path.join(out, name)):
            make(name, out)


if __name__ == "__main__":
    main()
