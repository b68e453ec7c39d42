"""What PyTorch reaches on the same GPU, for tools/gpu-check: the ceilings, products, attention and a layer.

    python3 tools/gpu_torch.py ceilings|products|attention|layer ...

A line a row: name, result, value, unit, bound, note, with tabs between; "-" where nothing bounds it. Without torch or a GPU
it ends with 1 and the reason.
"""
import sys

try:
    import torch
except ImportError as why:
    sys.exit(f"no torch: {why}")
if not torch.cuda.is_available():
    sys.exit(f"torch {torch.__version__} finds no GPU")

NOTE = f"torch {torch.__version__}"
GPU = torch.device("cuda")


def row(name, value, unit, bound=None, note=""):
    print(name, "measured", f"{value:.4g}", unit, f"{bound:.4g}" if bound else "-", note or NOTE, sep="\t", flush=True)


def seconds(work, repeats=10):
    """Of one call, the median of `repeats` after three that warm up."""
    for _ in range(3):
        work()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return sorted(times)[len(times) // 2]


def random(*shape, grad=False):
    return torch.randn(*shape, device=GPU, dtype=torch.bfloat16, requires_grad=grad)


def copy_rate():
    a = torch.empty(1 << 30, dtype=torch.uint8, device=GPU)
    b = torch.empty_like(a)
    return 2 * a.numel() / seconds(lambda: b.copy_(a))


def product_rate():
    a, b = random(8192, 8192), random(8192, 8192)
    return 2 * 8192**3 / seconds(lambda: a @ b)


def ceilings():
    row("ceiling: copy", copy_rate() / 1e9, "GB/s", None, NOTE + ", bytes read and written")
    row("ceiling: product bf16, 8,192 cubed", product_rate() / 1e12, "TFLOP/s", None, NOTE + ", random data")


def products():
    """Of a layer and the head at the 0.5B shape, the weights as kedge holds them: x W^T."""
    flops, rate = product_rate(), copy_rate()
    for n, k in ((896, 896), (4864, 896), (896, 4864), (151936, 896)):
        w = random(n, k)
        for rows in (1, 64, 512, 4096):
            x = random(rows, k)
            bound = max(2 * rows * n * k / flops, 2 * (n * k + rows * (n + k)) / rate)
            row(f"torch: x W^T, {rows} rows, W {n} x {k}", seconds(lambda: x @ w.T) * 1e3, "ms", bound * 1e3)


def attention():
    """Causal, 14 heads of 64, 8 x 1,024 tokens; and one query each of 64 sequences on 1,024 keys."""
    flops = product_rate()
    q, k, v = (random(8, 14, 1024, 64, grad=True) for _ in range(3))
    attend = torch.nn.functional.scaled_dot_product_attention
    work = 2 * 2 * 8 * 14 * 1024 * 1024 / 2 * 64
    row("torch: SDPA forward, 8 x 1,024, 14 heads of 64", seconds(lambda: attend(q, k, v, is_causal=True)) * 1e3, "ms",
        work / flops * 1e3)
    dout = random(8, 14, 1024, 64)

    def both():
        attend(q, k, v, is_causal=True).backward(dout)

    row("torch: SDPA forward and backward", seconds(both) * 1e3, "ms", 3.5 * work / flops * 1e3)
    q, k, v = random(64, 14, 1, 64), random(64, 2, 1024, 64), random(64, 2, 1024, 64)
    row("torch: SDPA decode, 64 sequences of 1,024 keys, 14 heads by 2",
        seconds(lambda: attend(q, k, v, enable_gqa=True)) * 1e3, "ms", 2 * 2 * k.numel() / copy_rate() * 1e3)


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
    flops, tokens = product_rate(), 8 * 1024
    model = Layer().to(GPU, torch.bfloat16)
    parameters = sum(p.numel() for p in model.parameters() if p.dim() == 2)
    work = 2 * parameters * tokens + 2 * 2 * 8 * 14 * 1024 * 1024 / 2 * 64
    compiled = torch.compile(model)
    x, dout = random(8, 1024, 896, grad=True), random(8, 1024, 896)
    with torch.no_grad():
        row("torch: compiled layer forward, 8 x 1,024 tokens, 0.5B shape", seconds(lambda: compiled(x)) * 1e3, "ms",
            work / flops * 1e3)
    row("torch: the same, forward and backward", seconds(lambda: compiled(x).backward(dout)) * 1e3, "ms",
        3 * work / flops * 1e3)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        {"ceilings": ceilings, "products": products, "attention": attention, "layer": layer}[name]()
