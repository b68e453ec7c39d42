"""kedge: KL-controlled policy gradients and the fused vocabulary head, for Python.

One file that calls libkedge through ctypes; nothing to compile. Needs numpy, and torch (CPU
tensors) for gradients. The mathematics is in the library: this file only passes pointers.

    import kedge
    algo = kedge.Algo("grpo", {"kl.beta": 0.01})
    loss = kedge.fused_loss(hidden, lm_head.weight, tokens, algo=algo, lengths=lengths,
                            advantage=advantage, old_logp=old, anchor_logp=anchor)
    loss.backward()                      # into hidden and lm_head.weight; no array of (N,V)

N: rows (sampled tokens that are trained on, sequence after sequence); S: sequences; lengths
(S): rows of each sequence; K: ids per row; V: vocabulary. kedge.h has every formula, shape and
unit; docs/libkedge.md is the tutorial. KedgeError names what was expected and found.
"""

import ctypes as C
import os

try:
    import numpy as np
except ImportError:
    raise ImportError("kedge.py needs numpy, which this Python has not (pip install numpy)") from None

try:
    import torch
except ImportError:
    torch = None

# ---- the library ------------------------------------------------------------------------------

_D, _I, _L, _Z, _P = C.c_double, C.c_int, C.c_int64, C.c_size_t, C.c_void_p


def _struct(name, *fields):
    """A struct of kedge.h: size first, then the fields in the header's order."""
    pairs = [("size", _Z)] + [(f, kind) for kind, names in fields for f in names.split()]
    return type(name, (C.Structure,), {"_fields_": pairs})


class _Err(C.Structure):
    _fields_ = [("code", _I), ("message", C.c_char * 768)]


_Needs = _struct("kedge_needs", (C.c_uint, "needs"), (_I, "scope sampler_top_k anchor_top_k"))
_Setting = _struct("kedge_setting", (_L, "vocab samples"),
                   (_I, "max_top_k off_policy truncated_sampling"), (C.c_uint, "provides"),
                   (_I, "reproduction sampled_old"))
_About = _struct("kedge_about", (C.c_char_p, "table name help formula source"),
                 (C.c_uint, "needs"), (C.c_char_p, "gradient"))
_Scores = _struct("kedge_scores", (_L, "n_seqs n_groups"),
                  (_P, "reward group_begin seq_begin token_reward mask greedy value old_logp "
                       "sum_sq is_weight part part_weight"), (_L, "n_parts"), (_P, "drop"))
_Advantage = _struct("kedge_advantage", (_P, "seq token returns"), (_D, "batch_std mean min max"),
                     (_L, "groups_equal"))
_Weights = _struct("kedge_weights", (_P, "pg kl entropy"))
_Rows = _struct("kedge_rows", (_L, "n_seqs n_tokens"),
                (_P, "seq_begin tokens logp old_logp mu_logp anchor_logp advantage entropy "
                     "kl_exact"),
                (_I, "k_sampler k_anchor"),
                (_P, "ids logp_at anchor_at mu_at log_kept old_log_kept pg_weight kl_weight "
                     "entropy_weight is_weight selected"),
                (_D, "kl_divisor"), (C.c_uint64, "select_seed select_draw"))
_Grad = _struct("kedge_grad", (_P, "a_logp a_at a_entropy a_kl_exact a_log_kept pg_term kl_term "
                                   "metrics"),
                (_D, "pg kl entropy loss"), (_I, "any"))
_Head = _struct("kedge_head", (_I, "dtype"), (_L, "n_rows width vocab"),
                (_P, "hidden weight inv_temp tokens"), (_I, "k"), (_P, "ids"), (_I, "top_k"),
                (_L, "anchor_width"), (_P, "anchor_hidden anchor_weight anchor_inv_temp"))
_HeadRows = _struct("kedge_head_rows", (_P, "lse logp logp_at entropy top_ids top_logp kl_reverse "
                                            "kl_forward anchor_lse"))
_HeadGrad = _struct("kedge_head_grad", (_P, "lse a_logp a_at a_entropy entropy a_kl_reverse "
                                            "kl_reverse a_kl_forward anchor_lse dhidden dweight"))

_NEED_EXACT_REVERSE, _NEED_EXACT_FORWARD, _NEED_ENTROPY = 1 << 4, 1 << 5, 1 << 11
_lib = None


class KedgeError(ValueError):
    """An error of libkedge or of an argument; .status is a value of enum kedge_status."""

    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


def load(path=None):
    """Load libkedge from path. Without path: from the installation or build that contains this
    file, else wherever the system's loader finds it. The first use calls load()."""
    global _lib
    here = os.path.dirname(os.path.abspath(__file__))
    places = [path] if path else [
        p for p in (os.path.join(here, place, "libkedge.so.0")
                    for place in ("", "../../../lib", "../../build/release")) if os.path.exists(p)
    ] + ["libkedge.so.0"]
    lib = C.CDLL(places[0])
    for name in ("kedge_version", "kedge_status_name", "kedge_key"):
        getattr(lib, name).restype = C.c_char_p
    lib.kedge_key.argtypes = [_Z]
    for name in ("kedge_overlong", "kedge_adaptive_kl", "kedge_value_loss"):
        getattr(lib, name).restype = _D
    lib.kedge_overlong.argtypes = [_L, _L, _L, _D]
    lib.kedge_adaptive_kl.argtypes = [_D, _D, _D, _D, _L]
    lib.kedge_value_loss.argtypes = [_P, _P, _D, _D, _D, _D]
    for name in ("kedge_algo_free", "kedge_metrics_free", "kedge_metrics_clear"):
        getattr(lib, name).restype = None
    lib.kedge_metric.argtypes = [_P, _P, _P, _P, _Z]
    lib.kedge_anchor_due.argtypes = [_P, _L]
    _lib = lib
    return lib


def _call(name, *args):
    err = _Err()
    status = getattr(_lib or load(), name)(*args, C.byref(err))
    if status != 0:
        raise KedgeError(status, err.message.decode())


def _new(kind, **fields):
    s = kind(**fields)
    s.size = C.sizeof(kind)
    return s


def version():
    """Version of the loaded library: "0.1.0"."""
    return (_lib or load()).kedge_version().decode()


def set_threads(n):
    """Number of threads of the head and of ema; 0: OpenMP's default. No result depends on it."""
    (_lib or load()).kedge_set_threads(C.c_int(n))


def has_bf16():
    """Whether bfloat16 matrices are supported: always true."""
    return bool((_lib or load()).kedge_has_bf16())


def _listed(function):
    rows, about = [], _new(_About)
    while function(C.byref(about), _Z(len(rows))):
        rows.append({f: (lambda x: x.decode() if isinstance(x, bytes) else x)(getattr(about, f))
                     for f, _ in _About._fields_[1:]})
    return rows


def rows():
    """Every row of every table, as dicts: table (the key that selects the row), name, help, ..."""
    return _listed((_lib or load()).kedge_row)


def presets():
    """Every preset: name, kind, help, source, and values (also of the run: train.*, ...)."""
    lib, found = _lib or load(), _listed((_lib or load()).kedge_preset)
    for i, preset in enumerate(found):
        key, value, values, j = C.c_char_p(), C.c_char_p(), {}, 0
        while lib.kedge_preset_value(C.byref(key), C.byref(value), _Z(i), _Z(j)):
            values[key.value.decode()] = value.value.decode()
            j += 1
        found[i] = {"name": preset["name"], "kind": preset["table"], "help": preset["help"],
                    "source": preset["source"], "values": values}
    return found


def keys():
    """Every key of Algo.set."""
    lib, found = _lib or load(), []
    while True:
        key = lib.kedge_key(_Z(len(found)))
        if key is None:
            return found
        found.append(key.decode())


# ---- arrays -----------------------------------------------------------------------------------


def _array(x, dtype, name, shape=None):
    """x as a contiguous numpy array; None for None. shape: as expected; -1: any length."""
    if x is None:
        return None
    if torch is not None and isinstance(x, torch.Tensor):
        if x.device.type != "cpu":
            raise KedgeError(1, f"{name}: expected a CPU tensor, found one on {x.device}")
        x = x.detach()
        x = (x.double() if dtype == np.float64 else x).numpy()
    x = np.asarray(x)
    whole = np.issubdtype(x.dtype, np.integer) or x.dtype == np.bool_
    if np.issubdtype(dtype, np.integer) and x.size and not whole:
        raise KedgeError(1, f"{name}: expected whole numbers, found {x.dtype}")
    x = np.ascontiguousarray(x, dtype)
    if shape is not None and (x.ndim != len(shape)
                              or any(s not in (-1, t) for s, t in zip(shape, x.shape))):
        want = "(" + ", ".join("any" if s < 0 else str(s) for s in shape) + ")"
        raise KedgeError(5, f"{name}: expected shape {want}, found {x.shape}")
    return x


def _real(x, name, *shape):
    return _array(x, np.float64, name, shape or None)


def _at(x):
    return None if x is None else x.ctypes.data


def _begin(lengths):
    lengths = _array(lengths, np.int64, "lengths", (-1,))
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


# ---- algorithms -------------------------------------------------------------------------------


class Algo:
    """An algorithm: the defaults, then a preset (or None), then keys and values.

    Algo("ema-pg", {"kl.top_k": 64}); keys() lists the keys, rows() the names that select rows."""

    def __init__(self, preset=None, options=None):
        self._handle = C.c_void_p()
        _call("kedge_algo_create", C.byref(self._handle), preset.encode() if preset else None)
        for key, value in (options or {}).items():
            self.set(key, value)

    def __del__(self):
        if getattr(self, "_handle", None) and _lib is not None:
            _lib.kedge_algo_free(self._handle)

    def set(self, key, value):
        text = str(value).lower() if isinstance(value, bool) else str(value)
        _call("kedge_algo_set", self._handle, key.encode(), text.encode())
        return self

    def get(self, key):
        text = C.create_string_buffer(256)
        _call("kedge_algo_get", self._handle, key.encode(), text, _Z(256))
        return text.value.decode()

    def values(self):
        """Every key with its value."""
        return {key: self.get(key) for key in keys()}

    def needs(self):
        """needs (a mask of enum kedge_need), scope, sampler_top_k, anchor_top_k."""
        s = _new(_Needs)
        _call("kedge_algo_needs", C.byref(s), self._handle)
        return s

    def check(self, **setting):
        """Raise KedgeError if the algorithm cannot be computed or has a wrong gradient. setting:
        fields of struct kedge_setting; without any, every need counts as met."""
        s = C.byref(_new(_Setting, **setting)) if setting else None
        _call("kedge_algo_check", self._handle, s)

    def anchor_due(self, step):
        """Whether the anchor is updated after step `step` (or update, by anchor.unit), from 1 on."""
        return bool(_lib.kedge_anchor_due(self._handle, step))


class Metrics:
    """Sums of metrics over micro-batches; .dict(algo) returns names and values."""

    def __init__(self):
        self._handle = C.c_void_p()
        _call("kedge_metrics_create", C.byref(self._handle))

    def __del__(self):
        if getattr(self, "_handle", None) and _lib is not None:
            _lib.kedge_metrics_free(self._handle)

    def clear(self):
        _lib.kedge_metrics_clear(self._handle)

    def dict(self, algo):
        name, value, found = C.c_char_p(), _D(), {}
        while _lib.kedge_metric(C.byref(name), C.byref(value), self._handle, algo._handle,
                                len(found)):
            found[name.value.decode()] = value.value
        return found


# ---- rewards -> advantages, lengths -> weights --------------------------------------------------


class Result:
    """Named arrays and numbers."""

    def __init__(self, **fields):
        self.__dict__.update(fields)

    def __repr__(self):
        return f"Result({', '.join(self.__dict__)})"


def advantages(algo, reward, lengths, group_sizes, *, token_reward=None, mask=None, greedy=None,
               value=None, old_logp=None, sum_sq=None, is_weight=None, part=None, part_weight=None,
               drop=None):
    """Advantages of S completions in groups of the same prompt (group_sizes add up to S).

    part (S,P): several rewards, for gdpo and gdpo-token; nan: this completion lacks that reward.
    part_weight (P): default 1 each. If reward is None, it is the weighted sum of part.
    drop (S): true for completions without a verdict: no mean counts them, their advantage is 0.
    returns .token (N), .seq (S), .returns (N), .batch_std, .mean, .min, .max, .groups_equal"""
    seq_begin, group_begin = _begin(lengths), _begin(group_sizes)
    s, n = len(seq_begin) - 1, int(seq_begin[-1])
    if group_begin[-1] != s:
        raise KedgeError(5, f"group_sizes: expected a sum of {s} completions, found {group_begin[-1]}")
    if part is not None:
        part = np.asarray(part)
        if part.ndim != 2:
            raise KedgeError(5, f"part: expected (S,P), found {part.ndim} dimensions")
        p = part.shape[1]
        part = _real(part.reshape(-1), "part", s * p)
        part_weight = _real(np.ones(p) if part_weight is None else part_weight, "part_weight", p)
        reward = np.nan_to_num(part.reshape(s, p), nan=0) @ part_weight if reward is None else reward
    elif part_weight is not None:
        raise KedgeError(5, "part_weight: expected none without part")
    keep = dict(part=part, part_weight=part_weight, reward=_real(reward, "reward", s), group_begin=group_begin, seq_begin=seq_begin,
                token_reward=_real(token_reward, "token_reward", n),
                mask=_array(mask, np.uint8, "mask", (n,)), greedy=_real(greedy, "greedy", s),
                value=_real(value, "value", n), old_logp=_real(old_logp, "old_logp", n),
                sum_sq=_real(sum_sq, "sum_sq", n), is_weight=_real(is_weight, "is_weight", n),
                drop=_array(drop, np.uint8, "drop", (s,)))
    scores = _new(_Scores, n_seqs=s, n_groups=len(group_begin) - 1,
                  n_parts=0 if part is None else len(part_weight),
                  **{f: _at(x) for f, x in keep.items()})
    seq, token, returns = np.zeros(s), np.zeros(n), np.zeros(n)
    out = _new(_Advantage, seq=_at(seq), token=_at(token), returns=_at(returns))
    _call("kedge_advantages", C.byref(out), algo._handle, C.byref(scores))
    return Result(token=token, seq=seq, returns=returns, batch_std=out.batch_std, mean=out.mean,
                  min=out.min, max=out.max, groups_equal=out.groups_equal)


def weights(algo, lengths, drop=None):
    """Weight of every token's term over the whole optimizer batch, before it is split.

    drop (S): true for completions without policy and entropy loss.   returns .pg, .kl, .entropy, each (N)"""
    begin = _begin(lengths)
    s, n = len(begin) - 1, int(begin[-1])
    drop = _array(drop, np.uint8, "drop", (s,))
    pg, kl, entropy = np.zeros(n), np.zeros(n), np.zeros(n)
    out = _new(_Weights, pg=_at(pg), kl=_at(kl), entropy=_at(entropy))
    _call("kedge_weights", C.byref(out), algo._handle, _L(s), C.c_void_p(_at(begin)),
          C.c_void_p(_at(drop)))
    return Result(pg=pg, kl=kl, entropy=entropy)


# ---- rows -> loss -------------------------------------------------------------------------------

_REAL_ROWS = ("old_logp mu_logp anchor_logp advantage entropy kl_exact log_kept old_log_kept "
              "is_weight").split()
_REAL_COLUMNS = "logp_at anchor_at mu_at".split()
_NUMBERS = "kl_divisor select_seed select_draw".split()


def _rows(algo, logp, lengths, fields):
    """struct kedge_rows, and the arrays that its pointers need."""
    begin, logp = _begin(lengths), _real(logp, "logp", -1)
    n, ids = len(logp), fields.pop("ids", None)
    if begin[-1] != n:
        raise KedgeError(5, f"lengths: expected a sum of {n} rows, found {begin[-1]}")
    keep = {"seq_begin": begin, "logp": logp, "ids": _array(ids, np.int32, "ids", (n, -1)),
            "tokens": _array(fields.pop("tokens", None), np.int32, "tokens", (n,)),
            "selected": _array(fields.pop("selected", None), np.uint8, "selected", (n,))}
    k = 0 if ids is None else keep["ids"].shape[1]
    k_anchor = min(algo.needs().anchor_top_k, k)
    w, numbers = fields.pop("weights", None), {f: fields.pop(f, 0) for f in _NUMBERS}
    for name in ("pg", "kl", "entropy"):
        keep[name + "_weight"] = w and _real(getattr(w, name), name + "_weight", n)
    for name in _REAL_ROWS:
        keep[name] = _real(fields.pop(name, None), name, n)
    for name in _REAL_COLUMNS:
        keep[name] = _real(fields.pop(name, None), name, n, k)
    if fields:
        raise TypeError(f"unknown rows: {', '.join(fields)}")
    if keep["old_logp"] is None:  # on-policy
        keep["old_logp"] = logp.copy()
    rows = _new(_Rows, n_seqs=len(begin) - 1, n_tokens=n, k_sampler=k - k_anchor,
                k_anchor=k_anchor, **numbers, **{f: _at(x) for f, x in keep.items()})
    return rows, keep, n, k


def loss(algo, logp, lengths, *, metrics=None, **fields):
    """The loss of rows and its derivatives, in numpy.

    logp (N); fields, each as in struct kedge_rows: old_logp (N; absent: logp itself, on-policy),
    advantage, anchor_logp, mu_logp, entropy, kl_exact, log_kept, old_log_kept, is_weight (N);
    tokens (N); ids, logp_at, anchor_at, mu_at (N,K: the sampler's columns, then the anchor's);
    weights (result of weights(); absent: these rows are the whole optimizer batch), selected,
    kl_divisor, select_seed, select_draw. metrics: the Metrics to which these rows are added.
    returns .loss, .pg, .kl, .entropy, and the derivatives of the loss: .a_logp (N), .a_at (N,K),
    .a_entropy, .a_kl_exact, .a_log_kept (N)"""
    rows, keep, n, k = _rows(algo, logp, lengths, fields)
    a = {f: np.zeros(n) for f in ("a_logp", "a_entropy", "a_kl_exact", "a_log_kept")}
    a["a_at"] = np.zeros((n, k))
    grad = _new(_Grad, metrics=metrics._handle if metrics else None,
                **{f: _at(x) for f, x in a.items()})
    _call("kedge_loss", C.byref(grad), algo._handle, C.byref(rows))
    del keep
    return Result(loss=grad.loss, pg=grad.pg, kl=grad.kl, entropy=grad.entropy, **a)


def select(algo, logp, lengths, **fields):
    """kedge_select: selected tokens (N) of the whole optimizer batch, for clip-cov, kl-cov, m2po."""
    rows, keep, n, _ = _rows(algo, logp, lengths, fields)
    selected = np.zeros(n, np.uint8)
    _call("kedge_select", C.c_void_p(_at(selected)), algo._handle, C.byref(rows))
    del keep
    return selected


# ---- hidden states -> rows ------------------------------------------------------------------------


class _Matrix:
    """A matrix, copied only if not contiguous: numpy float32, or torch CPU float32 or bfloat16."""

    def __init__(self, x, name):
        if torch is not None and isinstance(x, torch.Tensor):
            if x.device.type != "cpu" or x.dtype not in (torch.float32, torch.bfloat16):
                raise KedgeError(6, f"{name}: expected a CPU tensor of float32 or bfloat16, found "
                                    f"{x.dtype} on {x.device}")
            self.keep = x.detach().contiguous()
            self.address, self.bf16 = self.keep.data_ptr(), x.dtype == torch.bfloat16
        else:
            if getattr(x, "dtype", None) != np.float32:
                raise KedgeError(6, f"{name}: expected numpy float32 (bf16 as a torch tensor), "
                                    f"found {getattr(x, 'dtype', type(x))}")
            self.keep = np.ascontiguousarray(x)
            self.address, self.bf16 = self.keep.ctypes.data, False
        if self.keep.ndim != 2:
            raise KedgeError(5, f"{name}: expected 2 dimensions, found {self.keep.ndim}")
        self.shape = tuple(self.keep.shape)


class _HeadCall:
    """struct kedge_head and everything that its pointers need."""

    def __init__(self, hidden, weight, tokens=None, ids=None, top_k=0, temperature=None,
                 anchor_hidden=None, anchor_weight=None):
        h, w = _Matrix(hidden, "hidden"), _Matrix(weight, "weight")
        n, (vocab, width) = h.shape[0], w.shape
        if h.shape[1] != width:
            raise KedgeError(5, f"hidden: expected width {width} as weight has, found {h.shape[1]}")
        self.n, self.width, self.vocab, self.top_k = n, width, vocab, top_k
        self.tokens = _array(tokens, np.int32, "tokens", (n,))
        self.ids = _array(ids, np.int32, "ids", (n, -1))
        self.k = 0 if ids is None else self.ids.shape[1]
        self.inv_temp = None if temperature is None else 1 / np.ascontiguousarray(
            np.broadcast_to(_array(temperature, np.float64, "temperature"), (n,)))
        self.matrices = [h, w]
        if self.k == 0:
            self.ids = None
        if anchor_hidden is not None:
            self.matrices += [_Matrix(anchor_hidden, "anchor_hidden"),
                              _Matrix(anchor_weight, "anchor_weight")]
            if self.matrices[2].shape != (n, self.matrices[3].shape[1]) or \
                    self.matrices[3].shape[0] != vocab:
                raise KedgeError(5, f"anchor: expected {n} rows and {vocab} words, found "
                                    f"{self.matrices[2].shape} and {self.matrices[3].shape}")
        if any(m.bf16 != h.bf16 for m in self.matrices):
            raise KedgeError(6, "head: expected matrices of one dtype")
        q = self.matrices[2:] or [None, None]
        self.struct = _new(_Head, dtype=int(h.bf16), n_rows=n, width=width, vocab=vocab,
                           hidden=h.address, weight=w.address, inv_temp=_at(self.inv_temp),
                           tokens=_at(self.tokens), k=self.k, ids=_at(self.ids), top_k=top_k,
                           anchor_width=q[0].shape[1] if q[0] else 0,
                           anchor_hidden=q[0].address if q[0] else None,
                           anchor_weight=q[1].address if q[1] else None)

    def forward(self, entropy=True, reverse=True, forward=True):
        """Rows by name; None for those that were not requested or lack an input."""
        n, anchor = self.n, len(self.matrices) > 2
        rows = {"lse": np.zeros(n),
                "logp": np.zeros(n) if self.tokens is not None else None,
                "logp_at": np.zeros((n, self.k)) if self.k else None,
                "entropy": np.zeros(n) if entropy else None,
                "top_ids": np.zeros((n, self.top_k), np.int32) if self.top_k else None,
                "top_logp": np.zeros((n, self.top_k)) if self.top_k else None,
                "kl_reverse": np.zeros(n) if anchor and reverse else None,
                "kl_forward": np.zeros(n) if anchor and forward else None,
                "anchor_lse": np.zeros(n) if anchor else None}
        out = _new(_HeadRows, **{f: _at(x) for f, x in rows.items()})
        _call("kedge_head", C.byref(out), C.byref(self.struct))
        return Result(**rows)

    def backward(self, rows, dweight=True, **a):
        """dhidden (N,D) and dweight (V,D) or None, both numpy float32."""
        dh = np.zeros((self.n, self.width), np.float32)
        dw = np.zeros((self.vocab, self.width), np.float32) if dweight else None
        a = {f: x if x is None else np.ascontiguousarray(x, np.float64) for f, x in a.items()}
        g = _new(_HeadGrad, dhidden=_at(dh), dweight=_at(dw), **{f: _at(x) for f, x in a.items()},
                 **{f: _at(getattr(rows, f)) for f in ("lse", "entropy", "kl_reverse",
                                                       "anchor_lse")})
        _call("kedge_head_backward", C.byref(g), C.byref(self.struct))
        return dh, dw


def head(hidden, weight, tokens=None, ids=None, top_k=0, temperature=None, anchor_hidden=None,
         anchor_weight=None):
    """Rows of a head without an array (N,V), in numpy (float64; top_ids int32).

    hidden (N,D) and weight (V,D): numpy float32, or torch CPU float32 or bfloat16; tokens (N),
    ids (N,K): -1 is none; temperature: a number or (N).
    returns .lse .logp .logp_at .entropy .top_ids .top_logp .kl_reverse .kl_forward .anchor_lse;
    None for a row whose input (tokens, ids, top_k or the anchor) was not given"""
    return _HeadCall(hidden, weight, tokens, ids, top_k, temperature, anchor_hidden,
                     anchor_weight).forward()


# ---- torch ----------------------------------------------------------------------------------------

if torch is not None:
    _OUT = ("logp", "logp_at", "entropy", "kl_reverse", "kl_forward")

    class _HeadFunction(torch.autograd.Function):
        """Forward and backward of the head. want: names of the optional rows to compute."""

        @staticmethod
        def forward(ctx, hidden, weight, call, want):
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(hidden, weight)  # so that autograd sees changes in place
            ctx.call = call
            ctx.rows = call.forward(*(name in want for name in ("entropy", "kl_reverse",
                                                                "kl_forward")))
            outs = [getattr(ctx.rows, name) for name in _OUT]
            return tuple(torch.from_numpy(x.copy()) if x is not None and
                         (name in want or name.startswith("logp")) else None
                         for name, x in zip(_OUT, outs))

        @staticmethod
        def backward(ctx, *grads):
            hidden, weight = ctx.saved_tensors
            a = {"a_at" if f == "logp_at" else "a_" + f: None if g is None else g.numpy()
                 for f, g in zip(_OUT, grads)}
            dh, dw = ctx.call.backward(ctx.rows, ctx.needs_input_grad[1], **a)
            return (torch.from_numpy(dh).to(hidden.dtype) if ctx.needs_input_grad[0] else None,
                    None if dw is None else torch.from_numpy(dw).to(weight.dtype), None, None)

    def head_rows(hidden, weight, tokens=None, ids=None, temperature=None, anchor_hidden=None,
                  anchor_weight=None, want=("entropy",)):
        """Rows as in head(), with gradients into hidden and weight: any loss of these rows can be
        written in torch. want: any of entropy, kl_reverse, kl_forward.
        returns .logp (N), .logp_at (N,K), .entropy, .kl_reverse, .kl_forward (N): float64 tensors;
        None for a row that is not in want or whose input was not given"""
        call = _HeadCall(hidden, weight, tokens, ids, 0, temperature, anchor_hidden, anchor_weight)
        return Result(**dict(zip(_OUT, _HeadFunction.apply(hidden, weight, call, want))))

    class _LossFunction(torch.autograd.Function):
        @staticmethod
        def forward(ctx, logp, logp_at, entropy, kl_exact, log_kept, algo, lengths, fields):
            inputs = (logp, logp_at, entropy, kl_exact, log_kept)
            r = loss(algo, logp, lengths, logp_at=logp_at, entropy=entropy, kl_exact=kl_exact,
                     log_kept=log_kept, **fields)
            ctx.given = [x is not None and torch.is_floating_point(x) for x in inputs]
            ctx.dtypes = [x.dtype if given else None for x, given in zip(inputs, ctx.given)]
            ctx.grads = (r.a_logp, r.a_at, r.a_entropy, r.a_kl_exact, r.a_log_kept)
            return torch.tensor(r.loss, dtype=torch.float64)

        @staticmethod
        def backward(ctx, grad):
            out = [torch.from_numpy(a).mul(grad).to(dtype) if given else None
                   for a, given, dtype in zip(ctx.grads, ctx.given, ctx.dtypes)]
            return (*out, None, None, None)

    def policy_loss(logp, *, algo, lengths, logp_at=None, entropy=None, kl_exact=None,
                    log_kept=None, **fields):
        """The loss of rows as a float64 scalar, with gradients into logp, logp_at, entropy,
        kl_exact and log_kept. The other fields, as in loss(), are constants."""
        return _LossFunction.apply(logp, logp_at, entropy, kl_exact, log_kept, algo, lengths,
                                   fields)

    def fused_loss(hidden, weight, tokens, *, algo, lengths, ids=None, temperature=None,
                   anchor_hidden=None, anchor_weight=None, **fields):
        """From hidden states (N,D) and head weights (V,D), float32 or bfloat16, to the loss, with
        gradients into hidden and weight; no array (N,V) in either direction. The head computes
        logp, logp_at, entropy and the exact KL; the other fields are as in loss(): old_logp,
        advantage, anchor_logp, ids with anchor_at and mu_at, weights, ...
        kl.estimator exact-reverse and exact-forward need anchor_hidden and anchor_weight."""
        needs = algo.needs().needs
        kl = "kl_reverse" if needs & _NEED_EXACT_REVERSE else \
             "kl_forward" if needs & _NEED_EXACT_FORWARD else None
        want = [kl] if kl else []
        if needs & _NEED_ENTROPY:
            want.append("entropy")
        if kl is None:
            anchor_hidden = anchor_weight = None
        r = head_rows(hidden, weight, tokens, ids, temperature, anchor_hidden, anchor_weight, want)
        return policy_loss(r.logp, algo=algo, lengths=lengths, logp_at=r.logp_at,
                           entropy=r.entropy, kl_exact=getattr(r, kl) if kl else None, ids=ids,
                           tokens=tokens, **fields)

# ---- around the loss --------------------------------------------------------------------------------


def kl_reward(algo, token_reward, lengths, old_logp, anchor_logp):
    """kedge_kl_reward on a copy.   returns token_reward - kl.beta KL_n (N), mean KL"""
    begin = _begin(lengths)
    n, mean = int(begin[-1]), _D()
    out = _real(token_reward, "token_reward", n).copy()
    old, anchor = _real(old_logp, "old_logp", n), _real(anchor_logp, "anchor_logp", n)
    _call("kedge_kl_reward", C.c_void_p(_at(out)), C.byref(mean), algo._handle,
          _L(len(begin) - 1), C.c_void_p(_at(begin)), C.c_void_p(_at(old)),
          C.c_void_p(_at(anchor)))
    return out, mean.value


def kl_advantage(algo, advantage, lengths, old_logp, anchor_logp):
    """kedge_kl_advantage on a copy: subtracts kl.beta KL_n (kl.in advantage), or kl.beta times the
    sum of KL_u over u >= n (advantage-future).
    returns advantage (N), mean KL, the largest amount subtracted from one token"""
    begin = _begin(lengths)
    n, mean, most = int(begin[-1]), _D(), _D()
    out = _real(advantage, "advantage", n).copy()
    old, anchor = _real(old_logp, "old_logp", n), _real(anchor_logp, "anchor_logp", n)
    _call("kedge_kl_advantage", C.c_void_p(_at(out)), C.byref(mean), C.byref(most), algo._handle,
          _L(len(begin) - 1), C.c_void_p(_at(begin)), C.c_void_p(_at(old)),
          C.c_void_p(_at(anchor)))
    return out, mean.value, most.value


def overlong(length, max_length, buffer, factor):
    """Overlong penalty of a completion, 0 or less (DAPO)."""
    return (_lib or load()).kedge_overlong(length, max_length, buffer, factor)


def adaptive_kl(coef, kl, target, horizon, n):
    """Next KL coefficient after n samples (Ziegler et al. 2019)."""
    return (_lib or load()).kedge_adaptive_kl(coef, kl, target, horizon, n)


def _floats(x, name):
    """Address and number of elements of a contiguous float32 array, for use in place."""
    tensor = torch is not None and isinstance(x, torch.Tensor)
    whole = x.is_contiguous() and x.device.type == "cpu" if tensor else x.flags.c_contiguous
    if x.dtype not in ((torch.float32,) if tensor else (np.float32,)) or not whole:
        raise KedgeError(6, f"{name}: expected contiguous float32 on the CPU, found {x.dtype}")
    return (x.data_ptr(), x.numel()) if tensor else (x.ctypes.data, x.size)


def ema(anchor, theta, eta):
    """anchor <- eta anchor + (1 - eta) theta in place; float32, numpy or torch CPU."""
    (a, n), (t, m) = _floats(anchor, "anchor"), _floats(theta, "theta")
    if n != m:
        raise KedgeError(5, f"ema: expected {n} numbers in theta, found {m}")
    _call("kedge_ema", C.c_void_p(a), C.c_void_p(t), _L(n), _D(eta))


def value_loss(value, old_value, returns, clip_range):
    """Clipped loss of a critic at one token.   returns loss, dloss/dvalue"""
    dv = _D()
    x = (_lib or load()).kedge_value_loss(C.addressof(dv), None, value, old_value, returns,
                                          clip_range)
    return x, dv.value
