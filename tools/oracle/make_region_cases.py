#!/usr/bin/env python3
"""Golden cases of trust regions and Top-k KLs: losses written here from their formulas, differentiated by autograd.

    make_region_cases.py OUT        then: kedge policy check OUT

Development only (torch, in double precision). What a method's own code computes is written once more, from logits
and over padded rows, so that nothing is shared with src/policy but the formula; `source` names where it was read.
"""
import json
import sys

import torch

torch.set_default_dtype(torch.float64)
OUT = sys.argv[1]
cases = {"corrections": [], "kl_topk": []}


def arr(x):
    x = torch.as_tensor(x)
    return {"shape": list(x.shape), "data": [int(v) if x.dtype == torch.int64 else v for v in x.reshape(-1).tolist()]}


def pack(d):
    return {k: arr(v) if torch.is_tensor(v) and v.dim() > 0 else float(v) for k, v in d.items()}


def put(family, name, source, config, inputs, expected, grad):
    cases[family].append({"name": name, "source": source, "config": config, "inputs": pack(inputs),
                          "expected": pack(expected), "grad": pack(grad)})


class Batch:
    """B rows of at most T tokens over V ids: the policy, the policy of the ratio, and the sampler, `far` apart."""

    def __init__(self, seed, far, B=3, T=4, V=5):
        g = torch.Generator().manual_seed(seed)
        draw = lambda *shape: torch.randn(*shape, generator=g).mul(10).round().div(10)
        self.z = (1.5 * draw(B, T, V)).requires_grad_()
        mu = self.z.detach() + far * draw(B, T, V)
        self.tokens = torch.randint(V, (B, T), generator=g)
        self.mask = torch.ones(B, T)
        for b in range(B):
            self.mask[b, T - b:] = 0
        at = lambda z: z.log_softmax(-1).gather(-1, self.tokens[..., None])[..., 0]
        self.lp, self.mu = at(self.z), at(mu)
        self.old = self.mu
        a = draw(B, 1)
        a[0] = -a[0].abs() - 0.3
        self.A = a.expand(B, T).contiguous()
        self.log_r = self.lp - self.mu
        self.r = self.log_r.exp()
        self.D = (self.lp.exp() - self.mu.exp()).abs()

    def put(self, name, source, config, terms, aggregate="token-mean", value=True):
        sums = (terms * self.mask).sum(-1)
        loss = {"token-mean": sums.sum() / self.mask.sum(), "token-sum": sums.sum(),
                "seq-mean-token-sum": sums.mean()}[aggregate]
        put("corrections", name, source, {"loss_agg_mode": aggregate, **config},
            {"logits": self.z.detach(), "tokens": self.tokens, "response_mask": self.mask, "old_log_prob": self.old,
             "rollout_log_prob": self.mu, "advantages": self.A},
            {"loss": loss.detach()} if value else {}, {"logits": torch.autograd.grad(loss, self.z)[0]})


def dro(seed, far):
    """Advantage times log-prob less beta / 2 times the squared log-ratio."""
    for beta in (0.1, 1.0):
        for aggregate in ("token-mean", "token-sum"):
            b = Batch(seed, far)
            b.put(f"dro/{beta}/{aggregate}/{far}/{seed}", "verl 0.9.1:trainer/ppo/core_algos.py:compute_policy_loss_dro",
                  {"loss_mode": "dro", "kl_tau": beta}, -(b.A * b.lp - beta / 2 * b.log_r.square()), aggregate)


def luspo(seed, far):
    """GSPO's clipped ratio of the sequence, times the sequence's length."""
    for low, high in ((0.002, 0.0025), (0.2, 0.28)):
        b = Batch(seed, far)
        s = ((b.log_r * b.mask).sum(-1) / b.mask.sum(-1)).exp()
        a = b.A[:, 0]
        one = -torch.minimum(s * a, s.clamp(1 - low, 1 + high) * a)
        b.put(f"luspo/{low}/{far}/{seed}", "TRL 1.16.0:trainer/grpo_trainer.py, loss_type luspo",
              {"loss_mode": "luspo", "clip_low": low, "clip_high": high}, one[:, None].expand_as(b.A),
              "seq-mean-token-sum")


def m2po(seed, far):
    """Algorithm 1; and the code, which cuts at one bound for all, never inside 1 - 0.3 .. 1 + 0.5."""
    for budget in (0.005, 0.04, 0.3):
        b = Batch(seed, far)
        x = b.log_r.detach()
        away = (b.A * x > 0) & (b.mask > 0)
        square = x.square()
        keep = b.mask.bool()
        while (away & keep).any() and square[away & keep].mean() > budget:
            worst = torch.where(away & keep, square, torch.zeros(())).argmax()
            keep.view(-1)[worst] = False
        b.put(f"m2po/{budget}/{far}/{seed}", "arXiv 2510.01161, Algorithm 1", {"loss_mode": "m2po", "m2_budget": budget},
              -b.A * b.r * keep)
        b = Batch(seed, far)
        low, high = 0.0, 1e5
        if away.any() and square[away].mean() > budget:
            caps = [v for v in square[away] if square[away].clamp(max=v).mean() < budget]
            tau = float(max(caps) - 1e-12) ** 0.5 if caps else 0.0
            low, high = float(torch.tensor(-tau).exp()), float(torch.tensor(tau).exp())
        cut = b.r.clamp(min(low, 0.7), max(high, 1.5))
        b.put(f"m2po-released/{budget}/{far}/{seed}",
              "Infini-AI-Lab/M2PO@4514ce2:verl/trainer/ppo/core_algos.py:compute_m2po_policy_loss",
              {"loss_mode": "m2po_released", "m2_budget": budget, "clip_low": 0.3, "clip_high": 0.5},
              torch.maximum(-b.A * b.r, -b.A * cut), value=False)  # cut tokens are constants there, and 0 here


def trm(seed, far):
    """Whole sequences lose their term: by the farthest token's (log r)^2 / 2, by the mean of r - 1 - log r."""
    for which, delta in (("trm_max", 0.01), ("trm_max", 0.2), ("trm_mean", 0.01), ("trm_mean", 0.05)):
        b = Batch(seed, far)
        x = b.log_r.detach() * b.mask
        d = x.square().amax(-1) / 2 if which == "trm_max" else ((x.exp() - 1 - x) * b.mask).sum(-1) / b.mask.sum(-1)
        b.put(f"{which}/{delta}/{far}/{seed}", "arXiv 2512.23075; verl 0.9.1: rollout_rs seq_max_k2, seq_mean_k3",
              {"loss_mode": "vanilla", "mask": which, "mask_delta": delta, "clip_low": 0.2, "clip_high": 0.28},
              torch.maximum(-b.A * b.r, -b.A * b.r.clamp(0.8, 1.28)) * (d <= delta)[:, None])


def vaco(seed, far):
    """Tokens that lead away lose their term where the sequence has gone far: of the policy by half of the mean of
    |r - 1|, of the old policy by that of |k - 1|, whose k weighs tokens, at most 2, and 1.1 so that it is seen."""
    for delta in (0.01, 0.05, 0.15):
        b = Batch(seed, far)
        x = (b.log_r.detach() * b.mask)
        d = (x.exp() - 1).abs().sum(-1, keepdim=True) / b.mask.sum(-1, keepdim=True) / 2
        b.put(f"vaco/{delta}/{far}/{seed}", "arXiv 2603.01365; open-instruct#1681, of the current policy",
              {"loss_mode": "vanilla", "mask": "vaco", "mask_delta": delta, "clip_low": 0.2, "clip_high": 0.2},
              torch.maximum(-b.A * b.r, -b.A * b.r.clamp(0.8, 1.2)) * ~((d > delta) & (b.A * x > 0)))
    for delta, tis in ((0.02, 2.0), (0.1, 1.1), (0.3, 2.0)):
        b = Batch(seed, far)
        g = torch.Generator().manual_seed(200 + seed)
        b.old = b.mu + far * torch.randn(b.mu.shape, generator=g).mul(10).round().div(10)
        x, r = (b.old - b.mu) * b.mask, (b.lp - b.old).exp()
        d = (x.exp() - 1).abs().sum(-1, keepdim=True) / b.mask.sum(-1, keepdim=True)
        b.put(f"vaco-old/{delta}/{far}/{seed}", "open-instruct#1681: grpo_utils.py, compute_rho_correction",
              {"loss_mode": "vanilla", "mask": "vaco_old", "mask_delta": delta, "clip_low": 0.2, "clip_high": 0.272,
               "tis": tis, "tis_level": "token"},
              torch.maximum(-b.A * r, -b.A * r.clamp(0.8, 1.272)) * x.exp().clamp(max=tis)
              * ~((d > delta) & (b.A * x > 0)))


def vespo(seed, far):
    """phi(w) = w^k e^(lambda (1 - w)) of the sequence's whole ratio, detached, times the score function."""
    for pos, neg in (((2.0, 3.0), (3.0, 2.0)), ((2.0, 1.5), (4.0, 2.5))):
        b = Batch(seed, far)
        w = (b.log_r.detach() * b.mask).sum(-1, keepdim=True).exp()
        k, lam = (torch.where(b.A >= 0, pos[i], neg[i]) for i in (0, 1))
        b.put(f"vespo/{pos[1]}/{far}/{seed}", "FloyedShen/VESPO@3fd2c7f:recipe/vespo/code/core_algos.py; TRL 1.16.0",
              {"loss_mode": "vespo", "vespo_k_pos": pos[0], "vespo_lambda_pos": pos[1], "vespo_k_neg": neg[0],
               "vespo_lambda_neg": neg[1]}, -w.pow(k) * (lam * (1 - w)).exp() * b.A * b.lp)


def drpo(seed, far):
    """SPO's quadratic with the token's own bound delta / mu."""
    for delta in (0.15, 12.5):
        b = Batch(seed, far)
        b.put(f"drpo/{delta}/{far}/{seed}", "Tencent-Hunyuan/UniRL@17863c4:unirl/algorithms/drpo.py",
              {"loss_mode": "drpo", "delta_low": delta, "delta_high": delta},
              -b.A * b.r + b.A.abs() * b.mu.exp() * (b.r - 1).square() / (2 * delta))


def cppo(seed, far):
    """Algorithm 1 over Binary-TV; the budget fixed, or the sequence's 90th percentile (eq. 22). A score function."""
    for mode, delta, w_min, budget in (("cppo", 0.15, 0.8, 0.015), ("cppo", 0.08, 0.5, 0.0),
                                       ("cppo_calibrated", 0.15, 0.8, 0.02), ("cppo_calibrated", 0.05, 0.6, 0.005)):
        b = Batch(seed, far)
        keep = torch.ones_like(b.mask)
        for i in range(b.A.shape[0]):
            T, S, W = int(b.mask[i].sum()), 0.0, 0.0
            D = b.D[i, :T].detach()
            db = budget if mode == "cppo" else float(torch.quantile(D, 0.9).clamp(budget, 2 * budget))
            for t in range(T):
                w = 1 - (1 - w_min) * t / max(T - 1, 1)
                c = min(delta, delta + db * W - S)
                if b.A[i, t] * (b.r[i, t].detach() - 1) > 0 and w * D[t] > c:
                    keep[i, t] = 0
                S, W = S + float(w * D[t]), W + w
        b.put(f"{mode}/{delta}/{far}/{seed}", "arXiv 2606.10968, Algorithm 1; UniRL:unirl/algorithms/cppo.py",
              {"loss_mode": mode, "delta_low": delta, "delta_high": delta, "prefix_weight": w_min,
               "prefix_budget": budget}, -b.A * b.r.detach() * b.lp * keep)


def heads(seed, far):
    """Over the anchor's top k: the rest as one event (no less than 1e-7), and MOPD's sum."""
    for k in (1, 3, 5):
        for kind in ("bucket_reverse", "bucket_forward", "mopd"):
            b = Batch(seed, far)
            g = torch.Generator().manual_seed(100 + seed)
            ref = b.z.detach() + far * torch.randn(b.z.shape, generator=g).mul(10).round().div(10)
            top = ref.topk(k, -1).indices
            lp, lq = b.z.log_softmax(-1).gather(-1, top), ref.log_softmax(-1).gather(-1, top)
            p, q = lp.exp(), lq.exp()
            rest = lambda x: (1 - x.sum(-1, keepdim=True)).clamp(min=1e-7)
            if kind == "mopd":
                kl = (p * (lp - lq) - p + q).sum(-1)
            else:
                lp, lq = torch.cat([lp, rest(p).log()], -1), torch.cat([lq, rest(q).log()], -1)
                kl = (lp.exp() * (lp - lq) if kind == "bucket_reverse" else lq.exp() * (lq - lp)).sum(-1)
            loss = (kl * b.mask).sum() / b.mask.sum()
            put("kl_topk", f"{kind}/{k}/{far}/{seed}",
                "arXiv 2606.30406, eq. 5 (ms-swift#10079)" if kind == "mopd" else
                "OpenClaw-RL#4:topk_distillation_loss_function", {"kl_type": kind, "tail": False, "reduce": "mean"},
                {"logits": b.z.detach(), "ref_logits": ref, "tokens": b.tokens, "response_mask": b.mask,
                 "topk_indices": top}, {"kl_loss": loss.detach(), "kl_token": (kl * b.mask).detach()},
                {"logits": torch.autograd.grad(loss, b.z)[0]})


for seed in (1, 2, 3):
    for far in (0.05, 0.4):
        for make in (dro, luspo, m2po, trm, heads, vespo, drpo, cppo, vaco):
            make(seed, far)
for family, name in (("corrections", "regions.json"), ("kl_topk", "heads.json")):
    with open(f"{OUT}/{name}", "w") as out:
        json.dump({"family": family, "part": 1, "parts": 1, "cases": cases[family]}, out, separators=(",", ":"))
        out.write("\n")
    print(f"{name}: {len(cases[family])} cases")
