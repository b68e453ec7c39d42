"""What PyTorch reaches on the same GPU, for tools/gpu-check: the ceilings, the shapes of `kedge bench ops`, a layer, answers.

    python3 tools/gpu_torch.py [--cpu] ceilings|products|attention|head|optimizer|layer|generate ...

A line a row: name, result, value, unit, bound, note, with tabs between; "-" where nothing bounds it. Rows named as those of
`kedge bench ops` behind "torch: " are of the same work in the same unit. Without torch or a GPU it ends with 1 and the
reason. --cpu: small shapes on the CPU, for trying this file.
"""
import importlib.util
import sys
import time

if "generate" in sys.argv and not importlib.util.find_spec("transformers"):
    sys.exit("no transformers")
try:
    import torch
except ImportError as why:
    sys.exit(f"no torch: {why}")
CPU = "--cpu" in sys.argv
if not CPU and not torch.cuda.is_available():
    sys.exit(f"torch {torch.__version__} finds no GPU")

NOTE = f"torch {torch.__version__}"
GPU = torch.device("cpu" if CPU else "cuda")
# as the sizes of guests/lab/bench/bench_ops.c
if CPU:
    ROWS, SEQUENCES, LENGTH, HEAD_ROWS, VOCAB, WIDTHS, WEIGHTS = (1, 64, 256), 1, 512, 256, 20000, (896,), 8 << 20
else:
    ROWS, SEQUENCES, LENGTH, HEAD_ROWS, VOCAB, WIDTHS, WEIGHTS = (1, 64, 512, 4096), 4, 2048, 2048, 151936, (896, 3584), 128 << 20


def row(name, value, unit, bound=None, note=""):
    print(name, "measured", f"{value:.4g}", unit, f"{bound:.4g}" if bound else "-", note or NOTE, sep="\t", flush=True)


def once(work):
    """Seconds of a call."""
    if CPU:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3


def seconds(work, repeats=10):
    """Of one call, the median of `repeats` after three that warm up."""
    for _ in range(3):
        work()
    return sorted(once(work) for _ in range(repeats))[repeats // 2]


def random(*shape, grad=False):
    return torch.randn(*shape, device=GPU, dtype=torch.bfloat16, requires_grad=grad)


def copy_rate():
    a = torch.empty(1 << (24 if CPU else 30), dtype=torch.uint8, device=GPU)
    b = torch.empty_like(a)
    return 2 * a.numel() / seconds(lambda: b.copy_(a))


def product_rate():
    side = 512 if CPU else 8192
    a, b = random(side, side), random(side, side)
    return 2 * side**3 / seconds(lambda: a @ b)


def ceilings():
    row("ceiling: copy", copy_rate() / 1e9, "GB/s", None, NOTE + ", bytes read and written")
    row("ceiling: product bf16, 8,192 cubed", product_rate() / 1e12, "TFLOP/s", None, NOTE + ", random data")


def products():
    """Of layers at the 0.5B and 7B shapes and the head, the weights as kedge holds them: x W^T."""
    flops, rate = product_rate(), copy_rate()
    shapes = ((896, 896), (4864, 896), (896, 4864), (18944, 3584), (3584, 18944), (151936, 896))
    for n, k in shapes[:1] if CPU else shapes:
        w = random(n, k)
        for rows in ROWS:
            x = random(rows, k)
            bound = max(2 * rows * n * k / flops, 2 * (n * k + rows * (n + k)) / rate)
            row(f"torch: x W^T, {rows} rows, W {n} x {k}", seconds(lambda: x @ w.T) * 1e3, "ms", bound * 1e3)


def attention():
    """Causal, 4 x 2,048 tokens, 16 heads of 128 by 4; and one query each of 64 sequences on 1,024 keys, the 0.5B shape."""
    q, k, v = random(SEQUENCES, 16, LENGTH, 128, grad=True), *(random(SEQUENCES, 4, LENGTH, 128, grad=True) for _ in range(2))
    attend = torch.nn.functional.scaled_dot_product_attention
    forward = lambda: attend(q, k, v, is_causal=True, enable_gqa=True)
    product, shape = SEQUENCES * 16 * 128 * LENGTH * (LENGTH + 1), f"head size 128, {SEQUENCES} x {LENGTH} tokens"
    ceiling = product_rate() / 1e9
    row(f"torch: attention forward, {shape}", 2 * product / seconds(forward) / 1e9, "GFLOP/s", ceiling)
    out, dout = forward(), random(SEQUENCES, 16, LENGTH, 128)
    back = lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)
    row(f"torch: attention backward, {shape}", 5 * product / seconds(back) / 1e9, "GFLOP/s", ceiling)
    q, k, v = random(64, 14, 1, 64), random(64, 2, 1024, 64), random(64, 2, 1024, 64)
    row("torch: SDPA decode, 64 sequences of 1,024 keys, 14 heads by 2",
        seconds(lambda: attend(q, k, v, enable_gqa=True)) * 1e3, "ms", 2 * 2 * k.numel() / copy_rate() * 1e3)


def head():
    """Log-probs of targets; with the way back, which kedge begins by making the logits again: three products both."""
    ceiling = product_rate() / 1e9
    for width in WIDTHS:
        x, w = random(HEAD_ROWS, width, grad=True), random(VOCAB, width, grad=True)
        target = torch.arange(HEAD_ROWS, device=GPU) * 7919 % VOCAB
        lose = lambda: torch.nn.functional.cross_entropy(x @ w.T, target)
        product, shape = 2 * HEAD_ROWS * VOCAB * width, f"V {VOCAB}, D {width}, {HEAD_ROWS} rows"
        with torch.no_grad():
            row(f"torch: head forward, {shape}", product / seconds(lose) / 1e9, "GFLOP/s", ceiling)
        both = lambda: torch.autograd.grad(lose(), (x, w))
        row(f"torch: head backward, {shape}", 3 * product / seconds(both) / 1e9, "GFLOP/s", ceiling,
            NOTE + ", its forward included, in bf16 with all logits")


def optimizer():
    w = torch.zeros(WEIGHTS, device=GPU, requires_grad=True)
    w.grad = torch.full_like(w, 1e-3)
    by = torch.optim.AdamW([w], lr=1e-6, betas=(0.9, 0.99), weight_decay=0.0, fused=True)
    row(f"torch: adamw, {WEIGHTS} weights", 28 * WEIGHTS / seconds(by.step) / 1e9, "GB/s", copy_rate() / 1e9, NOTE + ", fused")


class Layer(torch.nn.Module):
    """A Qwen2 layer of the 0.5B shape, without its rotary embedding."""

    def __init__(self):
        super().__init__()
        linear = lambda n, k, bias=False: torch.nn.Linear(k, n, bias=bias)
        self.q, self.k, self.v = linear(896, 896, True), linear(128, 896, True), linear(128, 896, True)
        self.o, self.gate, self.up, self.down = linear(896, 896), linear(4864, 896), linear(4864, 896), linear(896, 4864)
        self.norms = torch.nn.ModuleList(torch.nn.RMSNorm(896, eps=1e-6) for _ in range(2))

    def forward(self, x):
        heads = lambda t, n: t.view(x.shape[0], x.shape[1], n, 64).transpose(1, 2)
        h = self.norms[0](x)
        a = torch.nn.functional.scaled_dot_product_attention(
            heads(self.q(h), 14), heads(self.k(h), 2), heads(self.v(h), 2), is_causal=True, enable_gqa=True)
        x = x + self.o(a.transpose(1, 2).reshape(x.shape))
        h = self.norms[1](x)
        return x + self.down(torch.nn.functional.silu(self.gate(h)) * self.up(h))


def layer():
    """Forward, and forward and backward, of 8 x 1,024 tokens, compiled."""
    flops, length = product_rate(), 64 if CPU else 1024
    tokens = 8 * length
    model = Layer().to(GPU, torch.bfloat16)
    parameters = sum(p.numel() for p in model.parameters() if p.dim() == 2)
    work = 2 * parameters * tokens + 2 * 2 * 8 * 14 * length * length / 2 * 64
    compiled = torch.compile(model)
    x, dout = random(8, length, 896, grad=True), random(8, length, 896)
    with torch.no_grad():
        row(f"torch: compiled layer forward, 8 x {length:,} tokens, 0.5B shape", seconds(lambda: compiled(x)) * 1e3, "ms",
            work / flops * 1e3)
    row("torch: the same, forward and backward", seconds(lambda: compiled(x).backward(dout)) * 1e3, "ms",
        3 * work / flops * 1e3)


def generate():
    """Of random weights at the 0.5B shape, greedy, as `kedge bench serve` without its server: 64 sequences."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    prompt, n = 16, 8 if CPU else 64
    shape = dict(hidden_size=128, intermediate_size=256, num_hidden_layers=2, vocab_size=2048) if CPU else dict(
        hidden_size=896, intermediate_size=4864, num_hidden_layers=24, vocab_size=151936)
    config = Qwen2Config(num_attention_heads=14 if not CPU else 2, num_key_value_heads=2, tie_word_embeddings=True, **shape)
    model = Qwen2ForCausalLM(config).to(GPU, torch.bfloat16).eval()
    ids = torch.randint(0, config.vocab_size, (64, prompt), device=GPU)
    ask = lambda: model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, min_new_tokens=n, max_new_tokens=n)
    ask()
    row(f"torch: HF generate, {'small' if CPU else '0.5B'} shape, 64 sequences of {n} tokens", 64 * n / once(ask), "tokens/s")


PARTS = {f.__name__: f for f in (ceilings, products, attention, head, optimizer, layer, generate)}
if __name__ == "__main__":
    for name in sys.argv[1:]:
        if name != "--cpu":
            PARTS[name]()
