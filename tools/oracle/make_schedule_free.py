#!/usr/bin/env python3
"""Ten steps of schedule-free AdamW on the golden models, by torch in fp32 on a CPU.

    python tools/oracle/make_schedule_free.py [tests/data/reference]

Written from Algorithm 1 of Defazio et al. 2024 (arXiv 2405.15682) with its three sequences x, y, z kept as they are
there. Each folder gets schedule_free.json: the mean NLL at y before every step and its gradient norm, and the mean NLL
at the average x after every step. Development only.
"""
import json
import os
import sys

import torch
from transformers import AutoModelForCausalLM

from make_reference import CLIP, MODELS, STEPS, mean_nll

LR, WARMUP, BETA1, BETA2, EPS, DECAY = 3e-3, 3, 0.9, 0.999, 1e-8, 0.01


def put(model, point):
    with torch.no_grad():
        for p, value in zip(model.parameters(), point):
            p.copy_(value)


def train(model, seqs):
    x = [p.detach().clone() for p in model.parameters()]
    z = [p.clone() for p in x]
    v = [torch.zeros_like(p) for p in x]
    losses, norms, averages, weights = [], [], [], 0.0
    for t in range(1, STEPS + 1):
        y = [(1 - BETA1) * b + BETA1 * a for a, b in zip(x, z)]
        put(model, y)
        model.zero_grad()
        loss = mean_nll(model, seqs)
        loss.backward()
        losses.append(loss.item())
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        lr = LR * min(1.0, t / WARMUP)
        weights += lr ** 2
        c = lr ** 2 / weights
        for i, p in enumerate(model.parameters()):
            v[i] = BETA2 * v[i] + (1 - BETA2) * p.grad ** 2
            denominator = (v[i] / (1 - BETA2 ** t)).sqrt() + EPS
            z[i] = z[i] - lr * (p.grad / denominator + DECAY * y[i])
            x[i] = (1 - c) * x[i] + c * z[i]
        put(model, x)
        with torch.no_grad():
            averages.append(mean_nll(model, seqs).item())
    return {"losses": losses, "grad_norms": norms, "average_losses": averages}


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    out = sys.argv[1] if len(sys.argv) > 1 else "tests/data/reference"
    for name in MODELS:
        folder = os.path.join(out, name)
        with open(os.path.join(folder, "reference.json")) as f:
            seqs = json.load(f)["sequences"]
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        with open(os.path.join(folder, "schedule_free.json"), "w") as f:
            json.dump(train(model, seqs), f)
            f.write("\n")


if __name__ == "__main__":
    main()
