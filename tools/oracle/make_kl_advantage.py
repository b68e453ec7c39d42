#!/usr/bin/env python3
"""Golden cases of the KL that is taken off the advantage, alone or with that of all later tokens.

    make_kl_advantage.py > tests/data/golden/kl_in_advantage.json      then: kedge policy check tests/data/golden

Development only. A transcription into lists of search/verl/trainer/ppo/ray_trainer.py:apply_kl_to_advantages and of
core_algos.py:kl_penalty in LunjunZhang/ema-pg at f9b9776: padded rows, a mask with holes (retrieved text), the
cumulative sum from the right over masked values, and the controller's mean over answers. With torch and a clone
(make_kl_advantage.py CLONE) the authors' functions are run beside it and must agree.
"""
import json
import math
import random
import subprocess
import sys

SOURCE = "LunjunZhang/ema-pg:search/verl/trainer/ppo/ray_trainer.py:apply_kl_to_advantages"


def clamp(x, most):
    return max(-most, min(most, x))


def penalty(name, logp, ref):
    d = logp - ref
    if name == "kl":
        return d
    if name == "abs":
        return abs(d)
    if name == "mse":
        return d * d / 2
    if name == "k4":
        return d
    w = clamp(-d, 20)
    if name == "k5":
        return math.exp(w) * w
    return clamp(math.exp(w) - w - 1, 10)  # low_var_kl, k3plusplus


def take_off(advantage, mask, old, ref, name, beta, future):
    out, means = [], []
    for a, m, o, q in zip(advantage, mask, old, ref):
        kl = [penalty(name, x, y) * on for x, y, on in zip(o, q, m)]
        off = [sum(kl[t:]) * m[t] for t in range(len(kl))] if future else kl
        out.append([x - beta * y for x, y in zip(a, off)])
        means.append(sum(kl) / sum(m))
    return out, sum(means) / len(means)


def array(rows):
    return {"shape": [len(rows), len(rows[0])], "data": [x for row in rows for x in row]}


def authors(clone, advantage, mask, old, ref, name, beta, future):
    import ast
    import types

    import torch
    torch.set_default_dtype(torch.float64)
    space = {"torch": torch}
    for path, wanted in [("core_algos.py", ["kl_penalty"]), ("ray_trainer.py", ["apply_kl_to_advantages"])]:
        text = subprocess.run(["git", "-C", clone, "show", f"HEAD:search/verl/trainer/ppo/{path}"], check=True,
                              capture_output=True, text=True).stdout
        found = [f for f in ast.parse(text).body if isinstance(f, ast.FunctionDef) and f.name in wanted]
        for f in found:
            f.returns = None
            for a in f.args.args:
                a.annotation = None
        exec(compile(ast.Module(body=found, type_ignores=[]), path, "exec"), space)
    space["core_algos"] = types.SimpleNamespace(kl_penalty=space["kl_penalty"])
    space["masked_mean"] = lambda x, mask, axis: (x * mask).sum(axis) / mask.sum(axis)
    seen = []
    control = types.SimpleNamespace(value=beta, update=lambda current_kl, n_steps: seen.append(current_kl))
    names = ["advantages", "info_mask", "old_log_probs", "ref_log_prob"]
    batch = dict(zip(names, (torch.tensor(x) for x in (advantage, mask, old, ref))), responses=torch.tensor(old))

    class Batch(dict):
        batch_size = [len(old)]

    data = types.SimpleNamespace(batch=Batch(batch))
    space["apply_kl_to_advantages"](data, control, name, future)
    return data.batch["advantages"].tolist(), seen[0]


def case(name, future, rng, clone):
    B, T, beta = 3, 6, 0.1

    def rows(f):
        return [[f() for _ in range(T)] for _ in range(B)]

    a = [[x] * T for x in (rng.gauss(0, 1) for _ in range(B))]
    old, ref = rows(lambda: -abs(rng.gauss(0, 2))), rows(lambda: -abs(rng.gauss(0, 2)))
    ref[1][1] -= 25  # beyond the clamps
    mask = [[1, 1, 0, 0, 1, 0], [1, 1, 1, 1, 1, 1], [1, 0, 1, 0, 0, 0]]
    out, mean = take_off(a, mask, old, ref, name, beta, future)
    if clone:
        theirs, their_mean = authors(clone, a, mask, old, ref, name, beta, future)
        assert all(abs(x - y) < 1e-12 * (1 + abs(y)) for r, s in zip(out, theirs) for x, y in zip(r, s)), name
        assert abs(mean - their_mean) < 1e-12 * (1 + abs(mean)), name
    return {"name": f"kl_in_advantage/{'future' if future else 'token'}/{name}", "source": SOURCE,
            "config": {"kl_penalty": name, "kl_coef": beta, "use_future_kl_as_reward": future},
            "inputs": {"advantages": array(a), "info_mask": array(mask), "old_log_prob": array(old),
                       "ref_log_prob": array(ref)},
            "expected": {"advantages": array(out), "current_kl": mean}}


def main():
    rng = random.Random(7)
    names = ["kl", "abs", "mse", "low_var_kl", "k3plusplus", "k4", "k5"]
    cases = [case(n, future, rng, sys.argv[1] if len(sys.argv) > 1 else None)
             for future in (False, True) for n in names]
    json.dump({"family": "misc", "part": 1, "parts": 1, "cases": cases}, sys.stdout)
    print()


main()
