#!/usr/bin/env python3
"""Golden cases of methods that other trainers have: numbers that their own functions return.

    make_peer_cases.py MIRRORS OUT      MIRRORS: a folder of clones, OWNER+NAME/repo each; then: kedge policy check OUT

Development only (torch, numpy). A function is taken out of its file by name, as it stands in the commit that HEAD
names, and run on random logits in double precision: casts to float32 are widened, nothing else is changed. What is
written out here is the way in (log-probs of random logits) and, where a function returns terms, the mean over them.
"""
import ast
import collections
import json
import math
import subprocess
import sys
import types
from unittest import mock

import numpy as np
import torch

torch.set_default_dtype(torch.float64)
MIRRORS, OUT = sys.argv[1], sys.argv[2]

REPOS = {"trl": "huggingface+trl", "prime-rl": "PrimeIntellect-ai+prime-rl", "verl": "verl-project+verl",
         "slime": "THUDM+slime", "nemo-rl": "NVIDIA-NeMo+RL", "skyrl": "NovaSky-AI+SkyRL"}


class Wide(types.ModuleType):
    """torch whose float32 is float64."""

    float32 = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


def git(repo, *args):
    return subprocess.run(["git", "-C", f"{MIRRORS}/{REPOS[repo]}/repo", *args], check=True, capture_output=True,
                          text=True).stdout


def take(repo, path, *names, **scope):
    """Functions and methods (name or Class.name), without decorators and annotations, in one namespace."""
    tree = ast.parse(git(repo, "show", f"HEAD:{path}"))
    named = {(n, None) if "." not in n else tuple(reversed(n.split("."))) for n in names}
    names = [name for name, _ in named]
    owner = {f: c.name for c in ast.walk(tree) if isinstance(c, ast.ClassDef) for f in c.body}
    found = [n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))
             and ((n.name, None) in named or (n.name, owner.get(n)) in named)]
    for f in found:
        f.decorator_list, f.returns = [], None
        for a in f.args.args + f.args.kwonlyargs + [x for x in (f.args.vararg, f.args.kwarg) if x]:
            a.annotation = None
    space = {"torch": Wide("torch"), "np": types.SimpleNamespace(asarray=lambda x, dtype=None: np.asarray(x),
                                                                 float32=np.float64), "math": math,
             "defaultdict": collections.defaultdict, **scope}
    exec(compile(ast.Module(body=found, type_ignores=[]), path, "exec"), space)
    missing = [n for n in names if n not in space]
    assert not missing, (repo, path, missing)
    return types.SimpleNamespace(**{n: space[n] for n in names})


def arr(x):
    x = torch.as_tensor(x)
    return {"shape": list(x.shape), "data": [int(v) if x.dtype == torch.int64 else v for v in x.reshape(-1).tolist()]}


cases = {"advantages": [], "corrections": []}


def put(family, name, source, config, inputs, expected, grad=None):
    pack = lambda d: {k: arr(v) if torch.is_tensor(v) and v.dim() > 0 else float(v) for k, v in d.items()}
    cases[family].append({"name": name, "source": source, "config": config, "inputs": pack(inputs),
                          "expected": pack(expected), "grad": pack(grad or {})})


# ---- losses ----

class Batch:
    def __init__(self, seed, B=3, T=5, V=7):
        g = torch.Generator().manual_seed(seed)
        draw = lambda: torch.randn(B, T, V, generator=g).mul(10).round().div(10)
        self.z = (1.5 * draw()).requires_grad_()
        old = self.z.detach() + 0.3 * draw()
        mu = old + 0.5 * draw()
        self.tokens = torch.randint(V, (B, T), generator=g)
        self.mask = torch.ones(B, T)
        for b in range(B):
            self.mask[b, T - b:] = 0
        at = lambda z: z.log_softmax(-1).gather(-1, self.tokens[..., None])[..., 0]
        self.lp, self.old, self.mu = at(self.z), at(old), at(mu)
        a = torch.randn(B, 1, generator=g).mul(10).round().div(10)
        a[0] = -a[0].abs() - 0.3
        self.A = a.expand(B, T).contiguous()

    def put(self, name, source, config, loss, value=True):
        put("corrections", name, source, config,
            {"logits": self.z.detach(), "tokens": self.tokens, "response_mask": self.mask, "old_log_prob": self.old,
             "rollout_log_prob": self.mu, "advantages": self.A}, {"loss": loss.detach()} if value else {},
            {"logits": torch.autograd.grad(loss, self.z, retain_graph=True)[0]})

    def token_mean(self, x):
        return (x * self.mask).sum() / self.mask.sum()

    def seq_mean(self, x):
        return ((x * self.mask).sum(-1) / self.mask.sum(-1)).mean()


def rows(b, x):
    return [x[i][b.mask[i] > 0] for i in range(x.shape[0])]


def prime_rl(seed):
    f = take("prime-rl", "src/prime_rl/trainer/rl/loss.py", "_safe_mean", "compute_importance_ratio_and_mismatch_kl",
             "default_loss_fn", "ipo_loss_fn", LossOutputs=types.SimpleNamespace)
    for tau in (1e-3, 0.3):
        b = Batch(seed)
        inputs = types.SimpleNamespace(trainer_logprobs=b.lp, inference_logprobs=b.mu, advantages=b.A,
                                       loss_mask=b.mask.bool(), loss_weights=None)
        config = types.SimpleNamespace(ipo_threshold=0.1, adv_tau=1.0, kl_tau=tau, dppo_mask_low=0.1,
                                       dppo_mask_high=0.15)
        where = "PrimeIntellect-ai/prime-rl:src/prime_rl/trainer/rl/loss.py:"
        b.put(f"ipo/{seed}/{tau}", where + "ipo_loss_fn",
              {"loss_mode": "ipo", "delta_low": 0.1, "delta_high": 0.1, "kl_tau": tau, "loss_agg_mode": "token-mean"},
              f.ipo_loss_fn(inputs, config).loss / b.mask.sum())
        b.put(f"prime-default/{seed}/{tau}", where + "default_loss_fn",
              {"loss_mode": "prime_default", "delta_low": 0.1, "delta_high": 0.15, "kl_tau": tau,
               "loss_agg_mode": "token-mean"}, f.default_loss_fn(inputs, config).loss / b.mask.sum(),
              value=False)  # kedge's rows of that region are score functions: equal in gradient alone


def verl(seed):
    functional = take("verl", "verl/utils/torch_functional.py", "masked_sum", "masked_mean", "masked_var", "masked_whiten")
    corr = take("verl", "verl/trainer/ppo/rollout_corr_helper.py", "_parse_rollout_is_threshold",
                "compute_rollout_correction_weights", verl_F=functional, SAFETY_BOUND=20.0,
                compute_is_metrics=lambda **_: {}, Optional=None)
    core = take("verl", "verl/trainer/ppo/core_algos.py", "agg_loss", "compute_policy_loss_vanilla", verl_F=functional,
                AlgoConfig=int)

    class Config(dict):
        __getattr__ = dict.get

    config = Config(clip_ratio=0.2, clip_ratio_low=0.2, clip_ratio_high=0.28, clip_ratio_c=3.0, global_batch_info={})
    for level in ("token", "sequence"):
        for bounds, mask in (("0.8_1.25", "icepop"), (1.1, "")):
            b = Batch(seed)
            w, _ = corr.compute_rollout_correction_weights(b.old - b.mu, b.mask, level, bounds)
            loss, _ = core.compute_policy_loss_vanilla(b.old, b.lp, b.A, b.mask, "token-mean", config, w)
            b.put(f"verl/{level}/{mask or 'tis'}/{seed}",
                  "verl-project/verl:verl/trainer/ppo/rollout_corr_helper.py:compute_rollout_correction_weights",
                  {"loss_mode": "vanilla", "mask": mask, "tis": 1.25 if mask else 1.1, "tis_low": 0.8 if mask else 0.0,
                   "tis_level": level, "clip_low": 0.2, "clip_high": 0.28, "dual_clip": 3.0,
                   "loss_agg_mode": "token-mean"}, loss)


def slime(seed):
    core = take("slime", "slime/utils/ppo_utils.py", "compute_policy_loss", "compute_opsm_mask", Namespace=object)
    loss = take("slime", "slime/backends/megatron_utils/loss.py", "vanilla_tis_function", "icepop_function")
    for name, f in (("tis", loss.vanilla_tis_function), ("icepop", loss.icepop_function)):
        b = Batch(seed)
        args = types.SimpleNamespace(tis_clip_low=0.8, tis_clip=1.2)
        terms, _ = core.compute_policy_loss(torch.cat(rows(b, b.old - b.lp)), torch.cat(rows(b, b.A)), 0.2, 0.28)
        terms, _, _ = f(args, pg_loss=terms, train_log_probs=rows(b, b.old), rollout_log_probs=rows(b, b.mu),
                        loss_masks=rows(b, b.mask))
        b.put(f"slime/{name}/{seed}", f"THUDM/slime:slime/backends/megatron_utils/loss.py:{f.__name__}",
              {"loss_mode": "vanilla", "mask": "icepop" if name == "icepop" else "", "tis": 1.2, "tis_low": 0.8,
               "clip_low": 0.2, "clip_high": 0.28, "loss_agg_mode": "token-mean"}, terms.mean())
    for delta in (0.01, 0.05):
        b = Batch(seed)
        keep, _ = core.compute_opsm_mask(types.SimpleNamespace(opsm_delta=delta), rows(b, b.lp.detach()), rows(b, b.old),
                                         rows(b, b.A), rows(b, b.mask))
        terms, _ = core.compute_policy_loss(torch.cat(rows(b, b.old - b.lp)), torch.cat(rows(b, b.A)), 0.2, 0.28)
        lengths = [int(n) for n in b.mask.sum(-1)]
        mean = torch.stack([x.mean() for x in (terms * keep).split(lengths)]).mean()
        b.put(f"slime/opsm/{delta}/{seed}", "THUDM/slime:slime/utils/ppo_utils.py:compute_opsm_mask",
              {"loss_mode": "vanilla", "mask": "opsm", "mask_delta": delta, "clip_low": 0.2, "clip_high": 0.28,
               "loss_agg_mode": "seq-mean-token-mean"}, mean)


def trl(seed):
    f = take("trl", "trl/trainer/grpo_trainer.py", "_compute_loss", "get_off_policy_mask",
             nanmin=torch.min, nanmax=torch.max)
    for threshold, bounds in ((0.01, None), (0.1, None), (None, (0.8, 1.2))):
        b = Batch(seed)
        ratio = None
        if bounds:
            ratio = torch.exp((b.old - b.mu) * b.mask)
            ratio = ratio.masked_fill((ratio < bounds[0]) | (ratio > bounds[1]), 0.0)  # token_mask
        this = mock.MagicMock(top_entropy_quantile=1.0, off_policy_mask_threshold=threshold, beta=0.0, loss_type="grpo",
                              importance_sampling_level="token", epsilon_low=0.2, epsilon_high=0.28,
                              use_vllm=bool(bounds), vllm_importance_sampling_correction=True, aux_loss_enabled=False,
                              _entropy_bonus_enabled=False, current_gradient_accumulation_steps=1.0,
                              _metrics=collections.defaultdict(lambda: collections.defaultdict(list)))
        this.args.delta = None
        this.get_off_policy_mask = f.get_off_policy_mask
        this._get_per_token_logps_and_entropies.return_value = (b.lp, torch.zeros_like(b.lp), None)
        this.accelerator.gather = lambda x: x
        this.accelerator.gather_for_metrics = lambda x: x
        one = torch.ones(b.A.shape[0], 1, dtype=torch.int64)
        loss = f._compute_loss(this, None, {"prompt_ids": one, "prompt_mask": one, "completion_ids": b.tokens,
                                            "completion_mask": b.mask, "advantages": b.A[:, 0],
                                            "old_per_token_logps": b.old, "sampling_per_token_logps": b.mu,
                                            "importance_sampling_ratio": ratio})
        config = {"loss_mode": "vanilla", "clip_low": 0.2, "clip_high": 0.28, "loss_agg_mode": "seq-mean-token-mean"}
        if bounds:
            config |= {"mask": "icepop", "tis": bounds[1], "tis_low": bounds[0]}
        else:
            config |= {"mask": "off_policy_mask", "mask_delta": threshold}
        b.put(f"trl/{'icepop' if bounds else threshold}/{seed}",
              "huggingface/trl:trl/trainer/grpo_trainer.py:GRPOTrainer._compute_loss", config, loss)


def nemo_rl(seed):
    mean = take("nemo-rl", "nemo_rl/algorithms/utils.py", "masked_mean", Optional=None).masked_mean
    kinds = types.SimpleNamespace(TOKEN_LEVEL="token", SEQUENCE_LEVEL="sequence")
    f = take("nemo-rl", "nemo_rl/algorithms/loss/loss_functions.py", "ClippedPGLossFn.__call__", masked_mean=mean, LossType=kinds,
             calculate_kl=lambda **_: torch.zeros(1))  # of its metrics alone
    for kind, low, high in (("icepop", 0.8, 1.2), ("tis", None, 1.1), ("tis", 0.9, 1.1)):
        b = Batch(seed)
        this = mock.MagicMock(force_on_policy_ratio=False, reference_policy_kl_penalty=0, disable_ppo_ratio=False,
                              sequence_level_importance_ratios=False, ratio_clip_min=0.2, ratio_clip_max=0.28,
                              use_cispo=False, ratio_clip_c=None, truncated_importance_sampling_ratio=high,
                              truncated_importance_sampling_ratio_min=low, truncated_importance_sampling_type=kind,
                              use_importance_sampling_correction=True, loss_type="token",
                              positive_example_nll_weight=0.0)
        pad = lambda x: torch.cat([torch.zeros(x.shape[0], 1), x], 1)
        data = {"token_mask": pad(b.mask), "sample_mask": torch.ones(b.A.shape[0]), "advantages": pad(b.A),
                "prev_logprobs": pad(b.old), "generation_logprobs": pad(b.mu)}

        class Data(dict):
            __getattr__ = dict.get

        loss, _ = f.__call__(this, b.lp, Data(data), torch.tensor(float(b.A.shape[0])), b.mask.sum())
        b.put(f"nemo-rl/{kind}/{low}/{seed}",
              "NVIDIA-NeMo/RL:nemo_rl/algorithms/loss/loss_functions.py:ClippedPGLossFn.__call__",
              {"loss_mode": "vanilla", "mask": "icepop" if kind == "icepop" else "", "tis": high, "tis_low": low or 0.0,
               "clip_low": 0.2, "clip_high": 0.28, "loss_agg_mode": "token-mean", "tokens_eps": 1e-8}, loss)


# ---- advantages ----

def groups(seed, n_groups=3, size=4, parts=1):
    """Rewards [B,P] of groups whose rows lie next to each other, the last all alike, and a mask."""
    g = torch.Generator().manual_seed(seed)
    r = torch.randint(0, 4, (n_groups * size, parts), generator=g).double() / 2
    r[-size:, 0] = 1
    mask = torch.ones(n_groups * size, 5)
    for b in range(n_groups * size):
        mask[b, 2 + b % 4:] = 0
    return r, mask, torch.arange(n_groups).repeat_interleave(size)


def put_advantages(name, source, config, r, mask, group, a, weights=None):
    last = torch.zeros_like(mask)
    last[torch.arange(mask.shape[0]), mask.sum(-1).long() - 1] = 1
    total = (r * weights).sum(-1) if weights is not None else r[:, 0]
    inputs = {"token_level_rewards": last * total[:, None], "response_mask": mask, "group": group}
    if weights is not None:
        inputs |= {"reward_parts": r, "reward_weights": weights}
    put("advantages", name, source, config, inputs, {"advantages": a * mask})


def maxrl(seed):
    f = take("skyrl", "skyrl/backends/skyrl_train/utils/ppo_utils.py", "compute_maxrl_advantage")
    prime = take("prime-rl", "src/prime_rl/orchestrator/algo/max_rl.py", "score_group",
                 iter_trainable_traces=lambda episodes: [(None, e) for e in episodes],
                 assign_advantages=lambda trace, a: setattr(trace, "advantage", a))
    r, mask, group = groups(seed)
    r[:4] = 0  # a group that has nothing right
    rewards = torch.zeros_like(mask)
    rewards[:, 0] = r[:, 0]
    put_advantages(f"maxrl/skyrl/{seed}", "NovaSky-AI/SkyRL:skyrl/backends/skyrl_train/utils/ppo_utils.py:compute_maxrl_advantage",
                   {"estimator": "maxrl_skyrl"}, r, mask, group, f.compute_maxrl_advantage(rewards, mask, group.tolist())[0])
    a = torch.zeros(r.shape[0])
    for k in range(3):
        traces = [types.SimpleNamespace(reward=float(x)) for x in r[4 * k:4 * k + 4, 0]]
        try:
            prime.score_group(None, traces).send(None)
        except StopIteration:
            pass
        a[4 * k:4 * k + 4] = torch.tensor([t.advantage for t in traces])
    put_advantages(f"maxrl/prime-rl/{seed}", "PrimeIntellect-ai/prime-rl:src/prime_rl/orchestrator/algo/max_rl.py:MaxRLAlgorithm.score_group",
                   {"estimator": "maxrl"}, r, mask, group, a[:, None])


def gdpo(seed):
    weights = torch.tensor([1.0, 0.5, 0.25])
    r, mask, group = groups(seed, parts=3)
    functional = take("verl", "verl/utils/torch_functional.py", "masked_sum", "masked_mean", "masked_var", "masked_whiten")
    core = take("verl", "verl/trainer/ppo/core_algos.py", "compute_grpo_outcome_advantage",
                "compute_gdpo_outcome_advantage", verl_F=functional, AlgoConfig=None, Optional=collections.defaultdict(lambda: None))
    keys = ["a", "b", "c"]
    config = {"gdpo_reward_keys": keys, "gdpo_reward_weights": weights.tolist()}
    a, _ = core.compute_gdpo_outcome_advantage(
        torch.zeros_like(mask), mask, group.tolist(), config=config,
        non_tensor_batch={k: r[:, i].numpy() for i, k in enumerate(keys)},
        batch={"prompts": torch.zeros(r.shape[0], 2), "attention_mask": torch.cat([torch.ones(r.shape[0], 2), mask], 1).long()})
    put_advantages(f"gdpo/verl/{seed}", "verl-project/verl:verl/trainer/ppo/core_algos.py:compute_gdpo_outcome_advantage",
                   {"estimator": "gdpo_verl"}, r, mask, group, a, weights)
    f = take("nemo-rl", "nemo_rl/algorithms/utils.py", "calculate_baseline_and_std_per_prompt", "get_gdpo_reward_component_keys",
             Optional=None)
    est = take("nemo-rl", "nemo_rl/algorithms/advantage_estimator.py", "GDPOAdvantageEstimator.compute_advantage", **vars(f))
    this = types.SimpleNamespace(use_leave_one_out_baseline=False, normalize_rewards=True, reward_weights=weights.tolist())
    a = est.compute_advantage(this, group[:, None], None, mask,
                                                          {f"reward/{k}": r[:, i] for i, k in enumerate(keys)})
    put_advantages(f"gdpo/nemo-rl/{seed}", "NVIDIA-NeMo/RL:nemo_rl/algorithms/advantage_estimator.py:GDPOAdvantageEstimator",
                   {"estimator": "gdpo_nemo"}, r, mask, group, a, weights)
    put_advantages(f"gdpo/trl/{seed}", "huggingface/trl:trl/trainer/grpo_trainer.py:GRPOTrainer._generate_and_score_completions",
                   {"estimator": "gdpo_trl", "std_eps": 1e-4}, r, mask, group, trl_advantages(r, weights, "normalize_then_sum")[:, None], weights)
    put_advantages(f"grpo/trl/{seed}", "huggingface/trl:trl/trainer/grpo_trainer.py:GRPOTrainer._generate_and_score_completions",
                   {"estimator": "grpo", "std_eps": 1e-4}, r, mask, group, trl_advantages(r, weights, "sum_then_normalize")[:, None], weights)


def trl_advantages(r, weights, how):
    """The statements from the unscorable mask to the advantages, as they stand."""
    tree = ast.parse(git("trl", "show", "HEAD:trl/trainer/grpo_trainer.py"))
    whole = next(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "_generate_and_score_completions")
    assigns = lambda n, name: isinstance(n, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in n.targets)
    begin = next(i for i, n in enumerate(whole.body) if assigns(n, "unscorable_mask"))
    end = max(i for i, n in enumerate(whole.body) if assigns(n, "advantages") and "nan_to_num" in ast.unparse(n))
    nanstd = take("trl", "trl/trainer/utils.py", "nanstd").nanstd
    this = types.SimpleNamespace(multi_objective_aggregation=how, reward_weights=weights, scale_rewards="group",
                                 reward_funcs=[0] * r.shape[1])
    space = {"torch": Wide("torch"), "self": this, "rewards_per_func": r, "num_generations": 4, "nanstd": nanstd,
             "device": "cpu"}
    exec(compile(ast.Module(body=whole.body[begin:end + 1], type_ignores=[]), "trl", "exec"), space)
    return space["advantages"]


for seed in (1, 2):
    for make in (prime_rl, verl, slime, trl, nemo_rl, maxrl, gdpo):
        make(seed)
for family, name in (("advantages", "peer_advantages.json"), ("corrections", "peer_corrections.json")):
    with open(f"{OUT}/{name}", "w") as out:
        json.dump({"family": family, "part": 1, "parts": 1, "cases": cases[family]}, out, separators=(",", ":"))
        out.write("\n")
    print(f"{name}: {len(cases[family])} cases")
for repo in sorted(REPOS):
    print(repo, git(repo, "rev-parse", "HEAD").strip())
