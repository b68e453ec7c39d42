#!/usr/bin/env python3
"""kedge's vocabulary head beside torch's chunked ones, on this machine's processor, at the same shape and threads.

    python tools/oracle/head_compare.py [--rows N] [--timeout S] [--threads T] [bf16|fp32 ...]

Forward and backward of the log-probs of N sampled tokens under V=151,936 and D=896:
    kedge           `kedge bench head` (which returns and differentiates 32 more log-probs a row than the others)
    torch chunked   torch.nn.functional.linear_cross_entropy with its default chunks and with larger ones
    Liger style     chunks of tokens; the forward turns each chunk's logits into their gradient in place and adds
                    both products (Hsu et al. 2024, arXiv 2410.10989); weight gradient in fp32 as kedge's
Each runs in a process of its own. Seconds are the best of two (of one that takes a minute); memory is the peak of the resident set above what
stands before, without the inputs and the gradients themselves. Development only.
"""
import argparse
import ctypes
import json
import multiprocessing
import os
import subprocess
import sys
import time

V, D = 151936, 896
SETTINGS = [("torch chunked, default", "torch", None), ("torch chunked, 512 rows", "torch", 512),
            ("Liger style, 32 rows (its rule)", "liger", 32), ("Liger style, 512 rows", "liger", 512)]


def resident_peak():
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith("VmHWM"))


def reset_peak():
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/clear_refs", "w") as f:
        f.write("5")


def torch_chunked(torch, hidden, weight, target, rows):
    options = torch.nn.LinearCrossEntropyOptions()
    if rows:
        options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=rows, chunking_method=None)
    hidden.grad = weight.grad = None
    loss = torch.nn.functional.linear_cross_entropy(hidden, weight, target, options=options)
    loss.backward()
    return loss.item()


def liger_style(torch, hidden, weight, target, dhidden, dweight, rows):
    n, loss = hidden.shape[0], 0.0
    dweight.zero_()
    for begin in range(0, n, rows):
        h, y = hidden[begin:begin + rows], target[begin:begin + rows]
        logits = (h @ weight.t()).float()
        lse = torch.logsumexp(logits, 1, keepdim=True)
        loss += (lse[:, 0] - logits.gather(1, y[:, None])[:, 0]).sum().item()
        logits.sub_(lse).exp_()
        logits[torch.arange(len(y)), y] -= 1
        dz = logits.mul_(1 / n).to(h.dtype)
        dhidden[begin:begin + rows] = dz @ weight
        if dz.dtype == dweight.dtype:
            dweight.addmm_(dz.t(), h)
        else:
            dweight.add_(dz.t() @ h)
    return loss / n


def measure(pipe, kind, dtype, n, rows, threads):
    import torch
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    ct = torch.bfloat16 if dtype == "bf16" else torch.float32
    hidden = torch.randn(n, D).to(ct)
    weight = (0.02 * torch.randn(V, D)).to(ct)
    target = torch.randint(V, (n,))
    counted = 0
    if kind == "torch":
        hidden.requires_grad_(), weight.requires_grad_()
        counted = (hidden.numel() + weight.numel()) * hidden.element_size()  # made inside: taken off
        run = lambda: torch_chunked(torch, hidden, weight, target, rows)
    else:
        dhidden, dweight = torch.ones(n, D), torch.ones(V, D)
        run = lambda: liger_style(torch, hidden, weight, target, dhidden, dweight, rows)
    reset_peak()
    before, seconds = resident_peak(), []
    while len(seconds) < 2 and sum(seconds) < 20:
        start = time.monotonic()
        loss = run()
        seconds.append(time.monotonic() - start)
    pipe.send((min(seconds), resident_peak() - before - counted, loss))


def in_process(timeout, *args):
    here, there = multiprocessing.get_context("spawn").Pipe()
    p = multiprocessing.get_context("spawn").Process(target=measure, args=(there,) + args)
    p.start()
    result = here.recv() if here.poll(timeout) else None
    p.kill()
    p.join()
    return result


def kedge(dtype, threads):
    binary = os.path.join(os.path.dirname(__file__), "..", "..", "kedge")
    lines = subprocess.run([binary, "bench", "head", "--json", "--dtype", dtype, "--threads", str(threads)],
                           check=True, stdout=subprocess.PIPE).stdout.splitlines()
    rows = [json.loads(line) for line in lines]
    return rows[0]["seconds"], next(r["bytes"] for r in rows if "extra memory" in r["name"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--timeout", type=float, default=600)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("dtypes", nargs="*", default=["bf16", "fp32"])
    args = parser.parse_args()
    print("| dtype | implementation | seconds | MiB beside inputs and gradients |\n|---|---|---|---|", flush=True)
    for dtype in args.dtypes:
        if args.rows == 4096:
            seconds, extra = kedge(dtype, args.threads)
            print(f"| {dtype} | kedge | {seconds:.1f} | {extra / 2**20:.0f} |", flush=True)
        for name, kind, rows in SETTINGS:
            result = in_process(args.timeout, kind, dtype, args.rows, rows, args.threads)
            text = f"{result[0]:.1f} | {result[1] / 2**20:.0f}" if result else f"over {args.timeout:.0f} | "
            print(f"| {dtype} | {name} | {text} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
