#!/usr/bin/env python3
"""Golden cases with other shapes, seeds and options than the published ones.

    make_golden_cases.py OUT [SEED]     then: kedge policy check OUT

Development only. Every formula is written out here once more, in torch double from the description of the
format, with gradients by automatic differentiation; nothing of kedge is used. File names, case names, vocabulary,
batch and k are drawn from the seed; optional inputs are left out at random.
"""
import json
import math
import os
import random
import sys

import torch

torch.set_default_dtype(torch.float64)
rng = random.Random()


def arr(x):
    x = torch.as_tensor(x)
    data = x.reshape(-1).tolist()
    return {"shape": list(x.shape), "data": [int(v) if x.dtype == torch.int64 else v for v in data]}


def pack(section):
    return {k: arr(v) if torch.is_tensor(v) and v.dim() > 0 else (v.item() if torch.is_tensor(v) else v)
            for k, v in section.items() if v is not None}


def case(name, config, inputs, expected, grad=None):
    return {"name": name, "source": "make_golden_cases.py", "config": config, "inputs": pack(inputs),
            "expected": pack(expected), "grad": pack(grad or {})}


def write(out, name, family, cases):
    with open(os.path.join(out, name), "w") as f:
        json.dump({"family": family, "part": 1, "parts": 1, "cases": cases}, f)
    print(f"{name}: {len(cases)} cases of {family}")


class Batch:
    """Logits with their tokens, a mask with holes, and policies around them."""

    def __init__(self, spread=0.4, scale=1.5, temperature=1.0):
        self.B, self.T, self.V = rng.choice([1, 2, 3, 5]), rng.choice([2, 4, 7]), rng.choice([3, 8, 19, 50])
        g = torch.Generator().manual_seed(rng.randrange(2 ** 31))
        draw = lambda: torch.randn(self.B, self.T, self.V, generator=g)
        self.z = (draw() * scale).requires_grad_()
        self.old_logits = self.z.detach() + spread * draw()
        self.ref_logits = self.z.detach() + spread * draw() + 0.7
        self.ro_logits = self.z.detach() + spread * draw()
        self.tokens = torch.randint(self.V, (self.B, self.T), generator=g)
        self.mask = (torch.rand(self.B, self.T, generator=g) < 0.8).double()
        self.mask[:, 0] = 1
        self.A = torch.randn(self.B, self.T, generator=g)
        self.tau = temperature
        self.lse = lambda z: (z / temperature).log_softmax(-1)
        self.lp_all = self.lse(self.z)
        self.lp = self.at(self.lp_all)
        self.old, self.ref, self.ro = (self.at(self.lse(x)) for x in (self.old_logits, self.ref_logits, self.ro_logits))

    def at(self, lp):
        return lp.gather(-1, self.tokens[..., None])[..., 0]

    def inputs(self, *names):
        every = {"logits": self.z.detach(), "tokens": self.tokens, "response_mask": self.mask, "old_log_prob": self.old,
                 "ref_log_prob": self.ref, "rollout_log_prob": self.ro, "advantages": self.A,
                 "old_logits": self.old_logits, "ref_logits": self.ref_logits}
        return {n: every[n] for n in ("logits", "tokens", "response_mask") + names}

    def grads(self, loss, of_lp=True):
        leaves = [self.z] + ([self.lp] if of_lp else [])
        g = torch.autograd.grad(loss, leaves, retain_graph=True, allow_unused=True)
        return {"logits": g[0], **({"log_prob": g[1]} if of_lp else {})}

    def entropy(self):
        return -(self.lp_all.exp() * self.lp_all).sum(-1)


def mean(x, m, eps=0.0):
    return (x * m).sum() / (m.sum() + eps)


def agg(x, m, mode, variant, info=None):
    info, n, (B, T) = info or {}, m.sum(-1), m.shape
    full, dp = n > 0, (info or {}).get("dp_size", 1)
    if mode == "token-mean":
        if variant == "stable-rl":
            return (x * m).sum() / info.get("batch_num_tokens", m.sum()) * dp
        return mean(x, m, 1e-8)
    if mode == "seq-mean-token-sum-norm":
        return (x * m).sum() / (info.get("loss_scale_factor", T) if variant == "stable-rl" else T)
    rows = (x * m).sum(-1)
    count = B if variant == "rpg" else full.sum()
    if variant == "stable-rl":
        count = info.get("global_batch_size", count)
    if mode == "seq-mean-token-mean":
        rows = rows / n if variant == "rpg" else rows / (n + 1e-8)
    return rows[full].sum() / count * (dp if variant == "stable-rl" else 1)


def sampled(kind, lp, ref, rpg=False):
    """value carries the gradient of the published estimator."""
    D, r = lp - ref, torch.exp(lp - lp.detach())
    c = -D if rpg else torch.clamp(-D, -20, 20)
    k3 = torch.clamp(torch.exp(c) - c - 1, -10, 10)
    return {"kl": D, "k1": D, "abs": D.abs(), "mse": D * D / 2, "k2": D * D / 2, "low_var_kl": k3, "k3": k3,
            "k3plusplus": k3 * r, "k4": D.detach() * r,
            "k5": torch.exp(c).detach() * c + lp - lp.detach()}[kind]


def importance(lp, old, lo, hi):
    s = torch.exp(torch.clamp(lp - old, -20, 20)).detach()
    return torch.clamp(s, lo if lo is not None else 0, hi if hi is not None else math.inf)


def topk_terms(b, forward, ids):
    lp, q = b.lp_all.gather(-1, ids), b.lse(b.ref_logits).gather(-1, ids)
    head = (q.exp() * (q - lp)).sum(-1) if forward else (lp.exp() * (lp - q)).sum(-1)
    outside = (ids != b.tokens[..., None]).all(-1).double()
    tail = sampled("k5" if forward else "k4", b.lp, b.ref)
    return head, outside * tail


def draw_topk(b, forward):
    k = rng.choice([1, 2, max(1, b.V // 2), b.V])
    ids = (b.ref_logits if forward else b.old_logits).topk(k, -1).indices
    return k, ids[..., torch.randperm(k)]


def kl_sampled():
    cases = []
    for i, kind in enumerate(["kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3", "k3plusplus", "k4", "k5"] * 2):
        b, iw = Batch(rng.choice([0.3, 2.0])), rng.random() < 0.6
        lo, hi = (rng.choice([None, 0.7]), rng.choice([None, 1.3])) if iw else (None, None)
        value = sampled(kind, b.lp, b.ref)
        weighted = value * (importance(b.lp, b.old, lo, hi) if iw else 1)
        eps = rng.choice([0, 1e-8])
        loss = mean(weighted, b.mask, eps)
        inputs = b.inputs("old_log_prob", "ref_log_prob")
        if rng.random() < 0.3:
            inputs["ref_logits"] = b.ref_logits
            del inputs["ref_log_prob"]
        cases.append(case(f"case {i}", {"variant": "x", "estimator": kind, "kl_iw": iw, "kl_iw_clip_lower": lo,
                                        "kl_iw_clip_upper": hi,
                                        "reduce": f"masked_mean ({'eps 1e-8' if eps else 'no eps'})"},
                          inputs, {"kl_token": value, "kl_token_iw": weighted, "kl_loss": loss}, b.grads(loss)))
    return cases


def kl_topk():
    cases = []
    for i in range(24):
        b, forward, tail, iw = Batch(), i % 2 == 1, rng.random() < 0.7, rng.random() < 0.5
        k, ids = draw_topk(b, forward)
        head, rest = topk_terms(b, forward, ids)
        s = importance(b.lp, b.old, None, 1.2) if iw else 1
        value = head + (s * rest if tail else 0)
        loss = mean(value, b.mask)
        inputs = b.inputs("old_log_prob", "ref_log_prob", "ref_logits")
        inputs["topk_indices"] = ids
        cases.append(case(f"{i}", {"kl_type": "full_forward" if forward else "full_reverse", "k": k, "V": b.V,
                                   "tail": tail, "kl_iw": iw, "kl_iw_clip_upper": 1.2 if iw else None},
                          inputs, {"kl_token": value, "kl_loss": loss}, b.grads(loss, False)))
    return cases


def exact(b, forward):
    q = b.lse(b.ref_logits)
    return (q.exp() * (q - b.lp_all)).sum(-1) if forward else (b.lp_all.exp() * (b.lp_all - q)).sum(-1)


def kl_full():
    cases = []
    for i in range(8):
        b, forward = Batch(), i % 2 == 1
        value = exact(b, forward)
        loss = mean(value, b.mask)
        inputs = b.inputs("ref_logits")
        del inputs["tokens"]
        cases.append(case(f"{i}", {"kl_type": "full_forward" if forward else "full_reverse"}, inputs,
                          {"kl_token": value, "kl_loss": loss}, b.grads(loss, False)))
    return cases


def dual_clip(lp, old, A, lo, hi, c, clamp=None):
    n = lp - old
    r = torch.exp(torch.clamp(n, -clamp, clamp) if clamp else n)
    a = torch.maximum(-A * r, -A * torch.clamp(r, 1 - lo, 1 + hi))
    return torch.where(A < 0, torch.minimum(a, -A * c), a) if c else a


def actor():
    cases = []
    for i in range(40):
        math_, parts = i % 2 == 1, rng.choice([1, 1, 2, 3])
        tau = rng.choice([1.0, 0.7, 1.3])
        b = Batch(temperature=tau)
        while b.B % parts:
            b = Batch(temperature=tau)
        kind = rng.choice(["none", "k1", "k2", "low_var_kl", "k3plusplus", "k4", "k5", "full_reverse", "full_forward"])
        lo, hi, c, ch, beta = 0.15, 0.31, 2.5, rng.choice([0, 0.02]), rng.choice([0.05, 0.3])
        iw, tail, std = rng.random() < 0.5, rng.random() < 0.7, rng.choice([None, 0.37])
        mode = rng.choice(["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"])
        topk = kind.startswith("full") and rng.random() < 0.6
        k, ids = draw_topk(b, kind == "full_forward") if topk else (None, None)
        s = importance(b.lp, b.old, None, None) if iw else torch.ones(())
        if kind == "none":
            kl = torch.zeros_like(b.lp)
        elif topk:
            head, rest = topk_terms(b, kind == "full_forward", ids)
            kl = head + (s * rest if tail else 0)
        elif kind.startswith("full"):
            kl = exact(b, kind == "full_forward")
        else:
            kl = sampled(kind, b.lp, b.ref) * s
        kl = kl / (std + 1e-6) if std else kl
        pg = dual_clip(b.lp, b.old, b.A, lo, hi, c if math_ else None, 20 if math_ else None)
        size, loss = b.B // parts, 0
        for p in range(parts):
            rows = slice(p * size, (p + 1) * size)
            red = lambda x: agg(x[rows], b.mask[rows], mode, "ema-math") if math_ else mean(x[rows], b.mask[rows])
            loss = loss + (red(pg) - ch * red(b.entropy()) + (beta * red(kl) if kind != "none" else 0)) / parts
        config = {"clip_ratio_low": lo, "clip_ratio_high": hi, "entropy_coeff": ch, "kl_loss_type": kind,
                  "kl_loss_coef": None if kind == "none" else beta, "kl_topk_tokens": k, "kl_tail": tail, "kl_iw": iw,
                  "adv_batch_std": std, "temperature": tau, "micro_batches": parts}
        if math_:
            config.update(clip_ratio_c=c, loss_agg_mode=mode)
        inputs = b.inputs("old_log_prob", "ref_log_prob", "advantages")
        if kind.startswith("full"):
            inputs["ref_logits"] = b.ref_logits
        if topk:
            inputs["topk_indices"] = ids
        cases.append(case(f"{'math' if math_ else 'search'}/{i}", config, inputs,
                          {"loss": loss, "entropy": b.entropy(), "kl_token_scaled": None if kind == "none" else kl},
                          b.grads(loss, False)))
    return cases


def rpg():
    cases, rf = [], ["fkl", "rkl", "ufkl", "urkl"]
    modes = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"]
    for i, kind in enumerate(["rpg_fkl", "rpg_rkl", "rpg_js", "rpg_ujs", "rpg_ufkl", "rpg_urkl"] * 3):
        b, iterative, mode = Batch(), i % 2 == 1, rng.choice(modes)
        D = b.lp - (b.old if iterative else b.ref)
        w = torch.exp(D)
        value = {"rpg_fkl": -D, "rpg_rkl": w * D, "rpg_js": (w * D + D) / 2, "rpg_ujs": (w * D - D) / 2,
                 "rpg_ufkl": w - D - 1, "rpg_urkl": w * (D - 1) + 1}[kind]
        value = value if kind == "rpg_fkl" else torch.clamp(value, -10, 10)
        pg = dual_clip(b.lp, b.old, b.A, 0.25, 0.2, 1.7)
        loss = (agg(pg, b.mask, mode, "rpg") - 0.01 * agg(b.entropy(), b.mask, mode, "rpg")
                + 0.3 * agg(value, b.mask, mode, "rpg"))
        cases.append(case(f"dualclip/{i}", {"kl_loss_type": kind, "kl_loss_coef": 0.3, "entropy_coeff": 0.01,
                                            "loss_agg_mode": mode, "use_iterative_ref_model": iterative,
                                            "clip_ratio_low": 0.25, "clip_ratio_high": 0.2, "clip_ratio_c": 1.7},
                          b.inputs("old_log_prob", "ref_log_prob", "advantages"),
                          {"loss": loss, "kl_token": value}, b.grads(loss, False)))
    for i in range(36):
        style, name = ["", "_clip_ppo", "_clip_ppo_v3"][i % 3], rf[i // 3 % 4]
        b, beta, mode = Batch(rng.choice([0.2, 0.8])), rng.choice([0.0003, 0.1, 1.5]), rng.choice(modes)
        lo, hi, c = 0.2, 0.33, 1.9
        w = torch.exp(b.lp - b.old).detach()
        wb = torch.clamp(w, 1 - lo, 1 + hi)
        K = beta * {"fkl": torch.ones_like(w), "rkl": -wb * (wb.log() + 1), "ufkl": 1 - wb, "urkl": -wb * wb.log()}[name]
        if not style:
            term = -(b.A * wb + K) * b.lp
        else:
            X, flat = (b.A + K / w) * b.lp * w, b.lp.detach()
            H, L, C = b.A * flat * (1 + hi) - K * flat, b.A * flat * (1 - lo) - K * flat, b.A * flat * c + K * flat
            l1, l21 = torch.where(w < 1 + hi, X, H), torch.where(w < 1 - lo, L, X)
            test = b.A > 0 if style == "_clip_ppo" else (b.A + K / w) * flat > 0
            term = torch.where(test, -l1, -torch.where(w < c, l21, C))
        loss = agg(term, b.mask, mode, "rpg")
        cases.append(case(f"reinforce/{i}", {"kl_type": f"rpg_rf_{name}{style}", "beta": beta, "loss_agg_mode": mode,
                                             "clip_ratio_low": lo, "clip_ratio_high": hi, "clip_ratio_c": c},
                          b.inputs("old_log_prob", "advantages"), {"loss": loss}, b.grads(loss)))
    return cases


def binned(b, ids):
    P, Q = b.lse(b.ro_logits).gather(-1, ids), b.lp_all.gather(-1, ids)
    rest = lambda x: torch.clamp(1 - x.exp().sum(-1), min=1e-12)
    kl = (P.exp() * (P - Q)).sum(-1) + rest(P) * (rest(P).log() - rest(Q).log())
    tv = ((P.exp() - Q.exp()).abs().sum(-1) + (rest(P) - rest(Q)).abs()) / 2
    return P, kl.detach(), tv.detach()


def dppo():
    cases = []
    modes = ["dppo_binary_kl", "dppo_binary_tv", "dppo_binary_kl_recompute", "dppo_binary_tv_recompute", "dppo_topk_kl",
             "dppo_topk_tv", "ppo", "ppo_recompute", "ppo_ablation_positive", "ppo_ablation_negative",
             "ppo_ablation_both", "pg_no_mask"]
    for i, mode in enumerate(modes * 2):
        b, red = Batch(0.6), rng.choice(["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"])
        info = rng.choice([{}, {"dp_size": 3}, {"global_batch_size": 7, "batch_num_tokens": 41}])
        lo, hi, c = rng.choice([0.03, 0.12]), rng.choice([0.04, 0.15]), rng.choice([1.3, 12.0])
        k = rng.choice([1, 2, min(6, b.V - 1)])
        ids = b.ro_logits.topk(k, -1).indices
        ids[..., -1] = torch.where((ids != b.tokens[..., None]).all(-1), b.tokens, ids[..., -1])
        P, kl, tv = binned(b, ids)
        lp, p = b.lp.detach(), b.lp.detach().exp()
        center = b.old if mode.endswith("recompute") else b.ro
        q, ratio, A = center.exp(), torch.exp(b.lp.detach() - center), b.A
        bkl = q * (center - lp) + (1 - q) * torch.log((1 - q + 1e-8) / (1 - p + 1e-8))
        d = {"kl": bkl, "tv": (p - q).abs()}["tv" if "_tv" in mode else "kl"]
        if "topk" in mode:
            d = kl if mode.endswith("kl") else tv
        if mode.startswith("dppo"):
            up, down = (d > hi) & (p > q), (d > lo) & (p < q)
        else:
            up, down = ratio > 1 + hi, ratio < 1 - lo
            if mode in ("ppo_ablation_positive", "ppo_ablation_both"):
                up = (ratio > 1.28) & (q >= hi)
            if mode in ("ppo_ablation_negative", "ppo_ablation_both"):
                down = (ratio < 0.8) & (q >= lo)
            if mode == "pg_no_mask":
                up = down = torch.zeros_like(up)
        out = torch.where(A > 0, up, down)
        rho = torch.clamp(torch.exp(torch.clamp(b.lp - b.ro, max=20)), max=c).detach()
        loss = agg(-A * rho * (1 - out.double()) * b.lp, b.mask, red, "stable-rl", info)
        inputs = b.inputs("old_log_prob", "rollout_log_prob", "advantages")
        expected = {"loss": loss}
        if "topk" in mode or rng.random() < 0.3:
            inputs.update(rollout_topk_ids=ids, rollout_topk_log_probs=P)
            expected.update(topk_kl=kl, topk_tv=tv)
        cases.append(case(f"{mode}-{i}", {"loss_mode": mode, "clip_ratio_low": lo, "clip_ratio_high": hi,
                                          "clip_ratio_c": c, "loss_agg_mode": red, "global_batch_info": info},
                          inputs, expected, b.grads(loss)))
    return cases


def surrogates():
    cases = []
    for i, mode in enumerate(["vanilla", "gpg", "cispo", "gspo", "sapo", "geo_mean", "kl_cov", "clip_cov"] * 3):
        b, lo, hi, c = Batch(0.5), rng.choice([0.1, 0.3]), rng.choice([0.12, 0.4]), rng.choice([1.6, 4.0])
        red, info = rng.choice(["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"]), rng.choice([{}, {"dp_size": 2}])
        config = {"loss_mode": mode, "loss_agg_mode": red, "clip_ratio_low": lo, "clip_ratio_high": hi, "clip_ratio_c": c,
                  "global_batch_info": info}
        m, A, n = b.mask, b.A, b.lp - b.old
        weights = torch.rand_like(A) + 0.5 if rng.random() < 0.4 and mode not in ("kl_cov", "clip_cov") else None
        count = m.sum(-1)
        if mode == "vanilla":
            term = dual_clip(b.lp, b.old, A, lo, hi, c, 20)
        elif mode == "gpg":
            term = -A * b.lp
        elif mode == "cispo":
            term = -torch.clamp(torch.exp(torch.clamp(n, -20, 20)), 1 - lo, 1 + hi).detach() * A * b.lp
        elif mode == "gspo":
            s = ((m * n).sum(-1) / count.clamp(min=1))[:, None].detach()
            ratio = torch.exp(torch.clamp(s + b.lp - b.lp.detach(), max=10))
            term, red = torch.maximum(-A * ratio, -A * torch.clamp(ratio, 1 - lo, 1 + hi)), "seq-mean-token-mean"
        elif mode == "sapo":
            config.update(tau_pos=0.8, tau_neg=1.7)
            tau = torch.where(A > 0, 0.8, 1.7)
            r = torch.exp(torch.clamp(n, -20, 20))
            term, red = -A * torch.sigmoid(tau * (r - 1)) * 4 / tau, "seq-mean-token-mean"
        elif mode == "geo_mean":
            x = torch.sign(A) * torch.minimum(torch.sign(A) * n, torch.sign(A) * torch.clamp(n, -lo, hi))
            ratio, a = torch.exp((m * x).sum(-1) / (count + 1e-8)), (m * A).sum(-1) / (count + 1e-8)
            w = torch.exp((m * torch.log(weights + 1e-10)).sum(-1) / (count + 1e-8)) if weights is not None else 1
            loss = (-a * ratio * w).mean()
        else:
            inside = m > 0
            cov = (A - A[inside].mean()) * (b.lp.detach() - b.lp.detach()[inside].mean())
            if mode == "kl_cov":
                share = rng.choice([0.1, 0.5])
                config.update(kl_cov_ratio=share, ppo_kl_coef=0.7)
                most = max(1, int(inside.sum() * share))
                flat = torch.where(inside, cov, -math.inf).reshape(-1)
                pick = torch.zeros_like(flat)
                pick[flat.topk(most).indices] = 1
                term = -A * torch.exp(n) + 0.7 * n.abs() * pick.reshape(A.shape)
            else:
                config.update(clip_cov_ratio=1.0, clip_cov_lb=0.05, clip_cov_ub=3.0)
                r = torch.exp(n)
                clipped = -A * torch.clamp(r, 1 - lo, 1 + hi) > -A * r
                term = torch.maximum(-A * r, -A * torch.clamp(r, 1 - lo, 1 + hi))
                term = torch.where(inside & ~clipped & (cov > 0.05) & (cov < 3.0), 0 * term, term)
        if mode != "geo_mean":
            loss = agg(term * weights if weights is not None else term, m, red, "stable-rl", info)
        inputs = b.inputs("old_log_prob", "advantages")
        if weights is not None:
            inputs["rollout_is_weights"] = weights
        cases.append(case(f"{mode} {i}", config, inputs, {"loss": loss}, b.grads(loss)))
    return cases


def whiten(x, m, eps):
    mu = mean(x, m, eps)
    N = m.sum()
    var = mean((x - mu) ** 2, m, eps) * N / (N - 1)
    return (x - mu) / torch.sqrt(var + 1e-8)


def advantages():
    cases = []
    names = ["grpo", "grpo_centred", "grpo_batch", "rpg", "rpg_batchmean", "rloo", "opo", "gpg", "grpo_passk",
             "reinforce_plus_plus", "reinforce_plus_plus_baseline", "remax", "gae"]
    for i, name in enumerate(names * 2):
        sizes = [rng.choice([2, 3, 5]) for _ in range(rng.choice([2, 4]))]
        B, T = sum(sizes), rng.choice([3, 8])
        ids = [label for n, label in zip(sizes, rng.sample(range(10000), len(sizes))) for _ in range(n)]
        rng.shuffle(ids)
        lengths = [rng.randrange(2, T + 1) for _ in range(B)]
        m = torch.tensor([[1.0 if t < n else 0.0 for t in range(T)] for n in lengths])
        rewards = torch.zeros(B, T)
        for r, n in enumerate(lengths):
            rewards[r, n - 1] = rng.gauss(0, 1)
        s, group = rewards.sum(-1), torch.tensor(ids)
        same = group[:, None] == group[None, :]
        n = same.sum(-1)
        mu = torch.stack([s[same[r]].mean() for r in range(B)])
        sd = torch.stack([s[same[r]].std() for r in range(B)])
        config, extra, token = {"estimator": name, "repo": "stable-rl"}, {}, None
        if name.startswith("grpo") and name != "grpo_passk":
            config.update(estimator="grpo", norm_by_std=name == "grpo", norm_by_batch_std=name == "grpo_batch")
            seq = (s - mu) / (sd + 1e-6) if name == "grpo" else s - mu
            if name == "grpo_batch":
                seq = seq / ((s - mu).std() + 1e-6)
        elif name == "rpg":
            seq = s - mu
        elif name == "rpg_batchmean":
            seq = s - s.mean()
        elif name == "rloo":
            seq = (s - mu) * n / (n - 1)
        elif name == "opo":
            L = m.sum(-1)
            seq = s - torch.stack([(s * L)[same[r]].sum() / L[same[r]].sum() for r in range(B)])
        elif name == "gpg":
            config["f_norm"] = 1.5
            seq = B / max(int((s != 0).sum()), 1) * (s - mu) / 1.5
        elif name == "grpo_passk":
            config["norm_by_std"] = std = rng.random() < 0.5
            top = [s[same[r]].topk(2).values for r in range(B)]
            seq = torch.stack([(t[0] - t[1]) if s[r] == t[0] else torch.zeros(()) for r, t in enumerate(top)])
            seq = seq / (sd + 1e-6) if std else seq
        elif name == "reinforce_plus_plus_baseline":
            token = whiten((s - mu)[:, None] * m, m, 1e-8) * m
        else:
            gamma, lam = rng.choice([1.0, 0.93]), 0.9
            G, A, values = torch.zeros(B, T), torch.zeros(B, T), torch.randn(B, T)
            for r, L in enumerate(lengths):
                run = last = 0.0
                for t in reversed(range(L)):
                    run = rewards[r, t] + gamma * run
                    after = values[r, t + 1] if t + 1 < L else 0.0
                    last = rewards[r, t] + gamma * after - values[r, t] + gamma * lam * last
                    G[r, t], A[r, t] = run, last
            if name == "reinforce_plus_plus":
                config["gamma"] = gamma
                token = whiten(G, m, 1e-8) * m
            elif name == "gae":
                config.update(gamma=gamma, lam=lam)
                extra["values"] = values
                token = whiten(A, m, 1e-8) * m
            else:
                base = torch.randn(B)
                extra["reward_baselines"] = base
                token = (rewards.sum(-1)[:, None] - base[:, None]) * m
        token = seq[:, None] * m if token is None else token
        cases.append(case(f"{name}/{i}", config, {"token_level_rewards": rewards, "response_mask": m, "group": group, **extra},
                          {"advantages": token}))
    return cases


def reductions():
    cases = []
    for i in range(40):
        B, T = rng.choice([1, 3, 6]), rng.choice([2, 5, 9])
        x, m = torch.randn(B, T, requires_grad=True), (torch.rand(B, T) < 0.7).double()
        variant = rng.choice(["rpg", "ema-math", "stable-rl"])
        modes = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"] + (["seq-mean-token-sum-norm"] if variant != "rpg" else [])
        mode = rng.choice(modes)
        m[:, 0] = 1
        if B > 1 and not (variant == "rpg" and mode == "seq-mean-token-mean"):
            m[rng.randrange(B)] = rng.choice([0.0, 1.0])
            m[0, 0] = 1
        info = rng.choice([{}, {"dp_size": 2, "batch_num_tokens": 13}, {"global_batch_size": 5, "loss_scale_factor": 11}])
        info = info if variant == "stable-rl" else {}
        loss = agg(x, m, mode, variant, info)
        cases.append(case(f"{i}", {"variant": variant, "loss_agg_mode": mode, **info},
                          {"loss_mat": x.detach(), "loss_mask": m}, {"loss": loss}, {"loss_mat": torch.autograd.grad(loss, x)[0]}))
    return cases


def ema():
    cases = []
    for tau, period, n, dtype in [(0.97, 4, 3, "float64"), (0.2, 1, 17, "float64"), (0.85, 7, 5, "float32"), (1.0, 2, 2, "float64")]:
        kind = torch.float32 if dtype == "float32" else torch.float64
        start, theta = torch.randn(n).to(kind), torch.randn(23, n).to(kind)
        now, seen, due = start.clone(), [], []
        for s in range(1, 24):
            move = tau < 1 and s % period == 0
            now = tau * now + (1 - tau) * theta[s - 1] if move else now
            seen.append(now.double())
            due.append(float(move))
        cases.append(case(f"{tau}", {"tau": tau, "period": period, "dtype": dtype}, {"theta0": start.double(), "theta": theta.double()},
                          {"ema": torch.stack(seen), "updated": torch.tensor(due)}))
    return cases


def around():
    kl, steps, coef, values = torch.rand(9) * 3, torch.tensor([4] * 9), 0.3, []
    for x in kl.tolist():
        coef *= 1 + min(max(x / 1.1 - 1, -0.2), 0.2) * 4 / 77
        values.append(coef)
    cases = [case("controller", {"init_kl_coef": 0.3, "target_kl": 1.1, "horizon": 77}, {"current_kl": kl, "n_steps": steps},
                  {"value": torch.tensor(values)})]
    n, score = torch.tensor([1, 9, 12, 15, 16]), torch.randn(5)
    p = torch.clamp(-(n.double() - (16 - 6)) / 6 * 0.8, max=0)
    cases.append(case("long", {"max_resp_len": 16, "overlong_buffer_len": 6, "penalty_factor": 0.8},
                      {"response_length": n, "score": score}, {"overlong_penalty": p, "sequence_reward": score + p}))
    for kind in ["kl", "low_var_kl", "k2"]:
        b = Batch()
        scores = torch.randn(b.B, b.T)
        value = sampled(kind, b.old, b.ref)
        rows = (value * b.mask).sum(-1) / (b.mask.sum(-1) + 1e-8)
        now = rows.mean().item()
        after = 0.2 * (1 + min(max(now / 0.4 - 1, -0.2), 0.2) * b.B / 60)
        cases.append(case(f"in the reward: {kind}", {"kl_penalty": kind, "init_kl_coef": 0.2, "target_kl": 0.4, "horizon": 60},
                          {"token_level_scores": scores, "response_mask": b.mask, "old_log_prob": b.old, "ref_log_prob": b.ref},
                          {"token_level_rewards": scores - 0.2 * b.mask * value, "next_coef": after}))
    v, old, ret, m = torch.randn(4, 3, requires_grad=True), torch.randn(4, 3), torch.randn(4, 3), torch.ones(4, 3)
    vc = torch.minimum(torch.maximum(v, old - 0.3), old + 0.3)
    loss = 0.5 * mean(torch.maximum((v - ret) ** 2, (vc - ret) ** 2), m, 1e-8)
    cases.append(case("critic", {"cliprange_value": 0.3, "variant": "rpg"}, {"vpreds": v.detach(), "values": old, "returns": ret, "response_mask": m},
                      {"vf_loss": loss}, {"vpreds": torch.autograd.grad(loss, v)[0]}))
    return cases


def main():
    out, seed = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1
    os.makedirs(out, exist_ok=True)
    rng.seed(seed)
    torch.manual_seed(seed)
    makers = {"kl_sampled": kl_sampled, "kl_topk": kl_topk, "kl_full": kl_full, "ema_actor_loss": actor, "rpg_loss": rpg,
              "dppo_loss": dppo, "policy_losses": surrogates, "advantages": advantages, "agg_loss": reductions,
              "ema_update": ema, "misc": around}
    for i, (family, make) in enumerate(makers.items()):
        write(out, f"{seed:03d} {chr(97 + i)}.json", family, make())


if __name__ == "__main__":
    main()
