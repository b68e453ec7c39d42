"""kedge.py against plain torch: losses and gradients of hidden states and weights.

usage: python_test.py [LIBRARY], from the top of the tree; without one, of the module `kedge` that is installed. Prints
what cmocka would."""

import ctypes
import os
import re
import sys
import traceback

sys.dont_write_bytecode = True
import kedge
import numpy as np
import torch

kedge.load(*map(os.path.abspath, sys.argv[1:]))
LENGTHS, N, D, V, K = [3, 1, 5, 2], 11, 16, 50, 6
SEQ = torch.repeat_interleave(torch.arange(4), torch.tensor(LENGTHS))
TOKEN_MEAN = torch.full((N,), 1 / N, dtype=torch.float64)
SEQ_MEAN = torch.tensor([1 / 4 / LENGTHS[i] for i in SEQ], dtype=torch.float64)


class World:
    """A linear model, another as anchor, and a third that sampled."""

    def __init__(self, dtype=torch.float32):
        g = torch.Generator().manual_seed(5)
        self.hidden = torch.randn(N, D, generator=g).to(dtype).requires_grad_()
        self.weight = (torch.randn(V, D, generator=g) * 0.4).to(dtype).requires_grad_()
        self.q_hidden = (self.hidden + 0.2 * torch.randn(N, D, generator=g)).detach().to(dtype)
        self.q_weight = (self.weight + 0.05 * torch.randn(V, D, generator=g)).detach().to(dtype)
        old = (self.hidden + 0.1 * torch.randn(N, D, generator=g)).double() @ self.weight.double().T
        self.old = torch.log_softmax(old, -1).detach()
        self.anchor = torch.log_softmax(self.q_hidden.double() @ self.q_weight.double().T, -1)
        self.tokens = torch.multinomial(self.old.exp(), 1, generator=g)[:, 0]
        self.advantage = torch.randn(4, generator=g).double()[SEQ]
        self.ids = self.old.topk(K).indices

    def at(self, lp, ids=None):
        return lp.gather(1, self.tokens[:, None])[:, 0] if ids is None else lp.gather(1, ids)

    def plain(self):
        """log-softmax in double, with gradients into fresh leaves."""
        self.h = self.hidden.detach().double().requires_grad_()
        self.w = self.weight.detach().double().requires_grad_()
        return torch.log_softmax(self.h @ self.w.T, -1)

    def fused(self, algo, **fields):
        self.hidden.grad = self.weight.grad = None
        return kedge.fused_loss(self.hidden, self.weight, self.tokens, algo=algo, lengths=LENGTHS,
                                old_logp=self.at(self.old), advantage=self.advantage,
                                anchor_logp=self.at(self.anchor), **fields)


def near(got, want, rel):
    got, want = got.detach().double(), want.detach().double()
    gap, size = (got - want).norm().item(), want.norm().item()
    assert size > 0 and gap <= rel * size, f"{gap:.3e} apart, of {size:.3e}"


def agree(world, loss, plain, rel=2e-5):
    loss.backward()
    plain.backward()
    assert abs(loss.item() - plain.item()) < rel, f"loss {loss.item()} is not {plain.item()}"
    near(world.hidden.grad, world.h.grad, rel)
    near(world.weight.grad, world.w.grad, rel)


def entropy(lp):
    return -(lp.exp() * lp).sum(1)


def ppo(r, a, low=0.2, high=0.2):
    return -torch.min(r * a, r.clamp(1 - low, 1 + high) * a)


def grpo_with_k3_and_entropy(dtype=torch.float32, rel=2e-5):
    w = World(dtype)
    algo = kedge.Algo("grpo", {"kl.beta": 0.1, "algo.entropy_coef": 0.02})
    lp = w.plain()
    logp, d = w.at(lp), w.at(w.anchor) - w.at(lp)
    term = ppo((logp - w.at(w.old)).exp(), w.advantage) + 0.1 * (d.exp() - d - 1)
    agree(w, w.fused(algo), (SEQ_MEAN * (term - 0.02 * entropy(lp))).sum(), rel)


def in_bf16_weights_get_the_same_gradient_but_for_rounding():
    grpo_with_k3_and_entropy(torch.bfloat16, 2e-2)


def topk_reverse_corrected_is_exact_on_the_head():
    w = World()
    algo = kedge.Algo("ema-pg", {"kl.beta": 0.5, "kl.top_k": K})
    lp = w.plain()
    logp, old = w.at(lp), w.at(w.old)
    at, q_at = w.at(lp, w.ids), w.at(w.anchor, w.ids)
    s, d = (logp - old).exp().detach(), logp - w.at(w.anchor)
    tail = (w.ids != w.tokens[:, None]).all(1).double()
    # value and gradient: p (d) at the head without the mass's own term; s d on the tail
    head = (at.exp() * (at - q_at) - at.exp() + at.exp().detach()).sum(1)
    tail_value = s * (d * d.detach() - d.detach() ** 2 + d.detach())
    term = ppo((logp - old).exp(), w.advantage, 0.2, 0.28) + 0.5 * (head + tail * tail_value)
    assert 0 < tail.sum() < N
    agree(w, w.fused(algo, ids=w.ids, anchor_at=q_at), (TOKEN_MEAN * term).sum())


def dppo_binary_kl_masks_by_the_divergence():
    w = World()
    algo = kedge.Algo("dppo-binary-kl", {"algo.delta_low": 0.002, "algo.delta_high": 0.002})
    lp = w.plain()
    logp, mu = w.at(lp), w.at(w.old)
    p, m = logp.exp().detach(), mu.exp()
    kl = m * (mu - logp.detach()) + (1 - m) * torch.log((1 - m + 1e-8) / (1 - p + 1e-8))
    away = torch.where(w.advantage > 0, p > m, p < m)
    keep = ~(away & (kl > 0.002))
    assert 0 < keep.sum() < N
    term = -w.advantage * (logp.detach() - mu).exp().clamp(max=5) * keep * logp
    metrics = kedge.Metrics()
    agree(w, w.fused(algo, metrics=metrics), (TOKEN_MEAN * term).sum())
    largest = (logp.detach() - mu).exp().max().item()
    assert abs(metrics.dict(algo)["policy/ratio_max"] - largest) < 1e-4


def rpg_urkl_regularises_its_advantage():
    w = World()
    algo = kedge.Algo("rpg-urkl", {"kl.beta": 0.3, "algo.clip_low": 0.9, "algo.clip_high": 9,
                                   "algo.dual_clip": 0})
    lp = w.plain()
    logp, old = w.at(lp), w.at(w.old)
    x = logp - old
    term = -x.exp() * (w.advantage - 0.3 * x.detach())
    agree(w, w.fused(algo), (TOKEN_MEAN * term).sum())


def exact_kl_in_both_directions_by_two_heads():
    for name in ("exact-reverse", "exact-forward"):
        w = World()
        algo = kedge.Algo("dr-grpo", {"algo.length_norm": 10, "kl.estimator": name,
                                      "kl.beta": 0.7, "anchor.kind": "fixed"})
        lp = w.plain()
        kl = (lp.exp() * (lp - w.anchor)).sum(1) if name == "exact-reverse" else \
            (w.anchor.exp() * (w.anchor - lp)).sum(1)
        term = ppo((w.at(lp) - w.at(w.old)).exp(), w.advantage) + 0.7 * kl
        agree(w, w.fused(algo, anchor_hidden=w.q_hidden, anchor_weight=w.q_weight),
              term.sum() / 10)


def a_loss_of_rows_alone_is_exact_in_double():
    g = torch.Generator().manual_seed(1)
    logp = (-2 * torch.rand(N, generator=g).double()).requires_grad_()
    h = torch.rand(N, generator=g).double().requires_grad_()
    old = logp.detach() + 0.1 * torch.randn(N, generator=g).double()
    a = torch.randn(N, generator=g).double()
    algo = kedge.Algo("dapo", {"algo.entropy_coef": 0.1})
    loss = kedge.policy_loss(logp, algo=algo, lengths=LENGTHS, entropy=h, old_logp=old,
                             advantage=a)
    (3 * loss).backward()
    got = logp.grad, h.grad
    logp.grad = h.grad = None
    plain = (TOKEN_MEAN * (ppo((logp - old).exp(), a, 0.2, 0.28) - 0.1 * h)).sum()
    (3 * plain).backward()
    near(got[0], logp.grad, 1e-12)
    near(got[1], h.grad, 1e-12)


def rows_have_gradients_for_any_loss_of_one_s_own():
    w = World()
    r = kedge.head_rows(w.hidden, w.weight, w.tokens, w.ids, temperature=0.7)
    ((r.logp ** 2).sum() + r.logp_at.exp().sum() - r.entropy.sum()).backward()
    w.plain()
    lp = torch.log_softmax(w.h @ w.w.T / 0.7, -1)
    ((w.at(lp) ** 2).sum() + w.at(lp, w.ids).exp().sum() - entropy(lp).sum()).backward()
    near(w.hidden.grad, w.h.grad, 2e-5)
    near(w.weight.grad, w.w.grad, 2e-5)


# surrogates and estimators whose gradient is the derivative of their value: no sg() in the formula, no mask
SURROGATES = ["ppo-clip", "importance", "sapo", "gspo", "gmpo", "drpo", "ipo", "rpg-fkl", "rpg-ufkl", "rpg-rkl", "rpg-urkl",
              "reinforce"]
ESTIMATORS = ["k1", "k2", "k3", "abs", "rpg-fkl", "rpg-rkl", "rpg-ufkl", "rpg-urkl", "jeffreys", "truncated-reverse",
              "truncated-forward", "bucket-reverse", "bucket-forward", "generalised-reverse"]
SMOOTH = {"algo.rpg_detach": False, "kl.importance": False, "kl.gradient": "corrected", "kl.top_k": K, "algo.clip_low": 0.9,
          "algo.clip_high": 9, "algo.dual_clip": 0, "algo.ratio_clamp": 0}


def smooth_algos():
    """(name, algorithm): each surrogate without a KL, each estimator beside the plain ratio."""
    for name in SURROGATES:
        beta = 0.5 if name.startswith(("ipo", "rpg")) else 0
        yield name, kedge.Algo(None, {**SMOOTH, "algo.surrogate": name, "kl.beta": beta, "algo.entropy_coef": 0.1})
    for name in ESTIMATORS:
        yield name, kedge.Algo(None, {**SMOOTH, "algo.surrogate": "importance", "kl.estimator": name, "kl.beta": 0.5,
                                      "anchor.kind": "fixed"})


def gradcheck_of_every_smooth_loss_in_double():
    w = World()
    lp = w.plain().detach()
    rows = [x.requires_grad_() for x in (w.at(lp), w.at(lp, w.ids), entropy(lp))]

    def is_derivative(algo):
        return torch.autograd.gradcheck(
            lambda logp, at, h: kedge.policy_loss(
                logp, algo=algo, lengths=LENGTHS, logp_at=at, entropy=h, old_logp=w.at(w.old), mu_logp=w.at(w.old),
                advantage=w.advantage, anchor_logp=w.at(w.anchor), ids=w.ids, tokens=w.tokens,
                anchor_at=w.at(w.anchor, w.ids), mu_at=w.at(w.old, w.ids)), rows, raise_exception=False)

    for name, algo in smooth_algos():
        assert is_derivative(algo), name
    # its weight is a constant, so this gradient is another
    assert not is_derivative(kedge.Algo("cispo"))


def gradcheck_from_hidden_states_and_weights():
    w = World()
    algo = kedge.Algo("grpo", {**SMOOTH, "kl.beta": 0.1, "algo.entropy_coef": 0.1})
    # of fp32: a step of 1e-2 is far above its rounding
    assert torch.autograd.gradcheck(
        lambda hidden, weight: kedge.fused_loss(hidden, weight, w.tokens, algo=algo, lengths=LENGTHS, old_logp=w.at(w.old),
                                                advantage=w.advantage, anchor_logp=w.at(w.anchor)),
        (w.hidden, w.weight), eps=1e-2, atol=1e-4, rtol=1e-2)


def micro_batches_add_up_under_weights_of_the_batch():
    w = World()
    algo = kedge.Algo("grpo", {"kl.beta": 0.1})
    w.fused(algo).backward()
    whole, weights = w.weight.grad.clone(), kedge.weights(algo, LENGTHS)
    w.weight.grad, at = None, 0
    for n in LENGTHS:
        part = slice(at, at + n)
        mine = kedge.Result(pg=weights.pg[part], kl=weights.kl[part],
                            entropy=weights.entropy[part])
        kedge.fused_loss(w.hidden[part], w.weight, w.tokens[part], algo=algo, lengths=[n],
                         old_logp=w.at(w.old)[part], advantage=w.advantage[part],
                         anchor_logp=w.at(w.anchor)[part], weights=mine).backward()
        at += n
    near(w.weight.grad, whole, 1e-5)


def numpy_alone_is_enough():
    w = World()
    r = kedge.head(w.hidden.detach().numpy(), w.weight.detach().numpy(), w.tokens.numpy(),
                   top_k=3, anchor_hidden=w.q_hidden.numpy(), anchor_weight=w.q_weight.numpy())
    lp = w.plain().detach()
    near(torch.from_numpy(r.logp), w.at(lp), 1e-5)
    near(torch.from_numpy(r.kl_forward), (w.anchor.exp() * (w.anchor - lp)).sum(1), 1e-5)
    assert (r.top_ids == lp.topk(3).indices.numpy()).all()
    algo = kedge.Algo("dr-grpo", {"algo.length_norm": 8})
    a = kedge.advantages(algo, [1, 0, 0, 1], LENGTHS, [2, 2])
    assert list(a.seq) == [0.5, -0.5, -0.5, 0.5] and a.token[3] == -0.5 and a.groups_equal == 0
    gdpo = kedge.Algo("gdpo")
    parts, sizes = [[1, 0], [0, 3], [1, 3], [0, 3]], [4]
    b = kedge.advantages(gdpo, None, LENGTHS, sizes, part=parts, part_weight=[1, 0.5])
    assert abs(b.seq.sum()) < 1e-9 and b.seq[0] < b.seq[2] and b.seq[1] == b.seq[3]
    a = kedge.advantages(algo, [1, 0, 0, float("nan")], LENGTHS, sizes, drop=[0, 0, 0, True])
    assert abs(a.seq[0] - 2 / 3) < 1e-12 and a.seq[3] == 0 and a.groups_equal == 0
    b = kedge.advantages(gdpo, None, LENGTHS, sizes, part=[[1, 0], [0, 3], [1, np.nan], [np.nan, np.nan]])
    assert abs(b.seq.sum()) < 1e-9 and b.seq[3] == 0 and b.seq[2] > 0
    costly = kedge.Algo(None, {"kl.estimator": "k1", "kl.beta": 0.5, "kl.in": "advantage-future"})
    off, mean, most = kedge.kl_advantage(costly, [1, 1, 1], [2, 1], [-1, -2, -3], [-1.5, -4, -2])
    assert list(off) == [-0.25, 0, 1.5] and mean == 0.125 and most == 1.25
    as_bools, as_bytes = kedge.weights(algo, [2, 1], drop=[True, False]), kedge.weights(algo, [2, 1], drop=[1, 0])
    assert list(as_bools.pg) == list(as_bytes.pg) and as_bools.pg[0] == 0 < as_bools.pg[2]
    out = kedge.loss(algo, r.logp, LENGTHS, advantage=a.token)
    assert abs(out.loss + (a.token / 8).sum()) < 1e-12
    theta = np.ones(4, np.float32)
    anchor = np.zeros(4, np.float32)
    kedge.ema(anchor, theta, 0.75)
    assert list(anchor) == [0.25] * 4
    x, dx = kedge.value_loss(1.0, 0.0, 2.0, 0.5)
    assert (x, dx) == (1.125, 0.0)


def what_is_wrong_is_said():
    w = World()
    cases = [(lambda: kedge.Algo("grop"), "grpo"),
             (lambda: kedge.Algo("grpo", {"kl.betta": 1}), "kl.beta"),
             (lambda: w.fused(kedge.Algo("ema-pg")), "ids"),
             (lambda: kedge.head(w.hidden.double(), w.weight), "float32 or bfloat16"),
             (lambda: kedge.head(w.hidden[:, :4], w.weight), "width 16"),
             (lambda: kedge.head(w.hidden, w.weight, w.tokens[:3]), "expected shape (11)"),
             (lambda: kedge.weights(kedge.Algo(), [3, -1]), "seq_begin"),
             (lambda: kedge.advantages(kedge.Algo(), None, [1, 1], [2], part=[[1], [0]]), "expected none"),
             (lambda: kedge.advantages(kedge.Algo("gdpo"), None, [1, 1], [2], part=[1, 0]), "(S,P)"),
             (lambda: kedge.head(w.hidden, w.weight, [1.5] * 11), "tokens: expected whole numbers, found float64"),
             (lambda: kedge.advantages(kedge.Algo("grpo"), [1e308, -1e308, 1e308, 0], [1] * 4, [4]),
              "scores.reward[0]: expected at most 1e+09 in size"),
             (lambda: kedge.head(w.hidden, w.weight, w.tokens + V), "target")]
    for case, word in cases:
        try:
            case()
        except kedge.KedgeError as e:
            assert word in str(e), f"expected '{word}' in: {e}"
        else:
            raise AssertionError(f"nothing was refused where '{word}' was expected")


def lists_say_what_there_is():
    names = {p["name"]: p["values"] for p in kedge.presets()}
    assert names["ema-pg"]["kl.estimator"] == "topk-reverse"
    tables = {r["table"] for r in kedge.rows()}
    assert {"algo.advantage", "algo.surrogate", "kl.estimator"} <= tables
    assert set(kedge.Algo().values()) == set(kedge.keys())


def structs_are_those_of_the_header():
    """Names, order and kinds of fields, so that the file cannot drift from kedge.h."""
    kinds = {"size_t": ctypes.c_size_t, "int64_t": ctypes.c_int64, "int": ctypes.c_int,
             "unsigned": ctypes.c_uint, "double": ctypes.c_double, "uint64_t": ctypes.c_uint64}
    text = re.sub(r"/\*.*?\*/", "", open("guests/lib/kedge.h").read(), flags=re.S)
    found = dict(re.findall(r"struct (kedge_\w+) \{(.*?)\}", text, flags=re.S))
    mine = {s.__name__: s for s in ctypes.Structure.__subclasses__()
            if s.__name__.startswith("kedge_")}
    assert len(mine) >= 11
    assert set(mine) == {name for name, body in found.items() if "size_t size;" in body}
    for name, struct in mine.items():
        fields = []
        for line in found[name].split(";"):
            words = line.replace("*", " * ").split()
            if not words:
                continue
            kind = next((kinds[w] for w in words if w in kinds), None)
            for part in " ".join(words).split(","):
                pointer = "*" in words
                fields.append((part.split()[-1], None if pointer else kind))
        theirs = [(f, None if k in (ctypes.c_void_p, ctypes.c_char_p) else k)
                  for f, k in struct._fields_]
        assert theirs == fields, f"{name}: {theirs} is not {fields}"


TESTS = [gradcheck_of_every_smooth_loss_in_double, gradcheck_from_hidden_states_and_weights,
         grpo_with_k3_and_entropy, topk_reverse_corrected_is_exact_on_the_head,
         dppo_binary_kl_masks_by_the_divergence, rpg_urkl_regularises_its_advantage,
         exact_kl_in_both_directions_by_two_heads, a_loss_of_rows_alone_is_exact_in_double,
         rows_have_gradients_for_any_loss_of_one_s_own,
         micro_batches_add_up_under_weights_of_the_batch, numpy_alone_is_enough,
         what_is_wrong_is_said, lists_say_what_there_is, structs_are_those_of_the_header]
failures = 0
for test in TESTS + [in_bf16_weights_get_the_same_gradient_but_for_rounding]:
    if "bf16" in test.__name__ and not kedge.has_bf16():
        print(f"skip: {test.__name__}: this processor has no bf16\n[  SKIPPED ] {test.__name__}")
        continue
    try:
        test()
        print(f"[       OK ] {test.__name__}")
    except Exception:
        failures += 1
        traceback.print_exc(file=sys.stdout)
        print(f"[  FAILED  ] {test.__name__}")
sys.exit(failures)
