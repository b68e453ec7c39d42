"""Records what tinker's SDK 0.38.0 and this server say to each other: tests/data/tinker/sdk.jsonl.

    kedge serve --model tests/data/verl_digit_llama --name digits --train DIR --dtype fp32 --max-len 64 --seed 0 --port 8777 &
    python3 guests/tinker/record.py > tests/data/tinker/sdk.jsonl

A proxy between the two writes a line per request. The losses of Tinker are checked here against their
published formulas, so the recording is a reference, not just a memory. Needs tinker, numpy and torch.
"""
import base64, http.client, json, math, os, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SERVER, records, lock = 8777, [], threading.Lock()


def text(data):
    try:
        json.loads(data)
        return data.decode()
    except ValueError:
        return {"base64": base64.b64encode(data).decode()} if data else ""


class Proxy(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        record = {"method": self.command, "path": self.path.split("?")[0], "request": text(body)}
        with lock:
            records.append(record)
        server = http.client.HTTPConnection("127.0.0.1", SERVER, timeout=60)
        server.request(self.command, self.path, body)
        answer = server.getresponse()
        data = answer.read()
        record.update(status=answer.status, response=text(data))
        self.send_response(answer.status)
        self.send_header("content-type", answer.headers["content-type"])
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST


proxy = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
threading.Thread(target=proxy.serve_forever, daemon=True).start()
os.environ.update(TINKER_BASE_URL=f"http://127.0.0.1:{proxy.server_port}", TINKER_API_KEY="tml-test",
                  TINKER_TELEMETRY="0")
import numpy as np
import tinker
import torch
from tinker import types

M, P = types.ModelInput.from_ints, types.SamplingParams
A, B = [3, 10, 4, 12, 5, 6, 7, 8, 9, 3, 4, 1], [5, 6, 7, 8, 9, 3, 4, 5]
ADAM = types.AdamParams(learning_rate=1e-2, grad_clip_norm=1.0, eps=1e-8)


def supervised(t, w):
    return types.Datum(model_input=M(t[:-1]), loss_fn_inputs=dict(target_tokens=t[1:], weights=w))


def sampled(t, n, logp, advantage, **more):
    k = len(t) - 1 - n
    return types.Datum(model_input=M(t[:-1]), loss_fn_inputs=dict(
        target_tokens=t[1:], logprobs=[0.0] * n + [logp] * k, advantages=[0.0] * n + [advantage] * k, **more))


def terms(loss, r, adv, lo, hi, beta):
    clip = min(max(r, lo), hi)
    return {"importance_sampling": -r * adv, "ppo": -min(r * adv, clip * adv),
            "dro": -(adv * LOGP - beta / 2 * math.log(r) ** 2), "cispo": -clip * adv * LOGP}[loss]


def check(loss, data, result, lo, hi, beta=0.05):
    """The sum that the documentation of Tinker's losses gives for the log-probs of the result."""
    global LOGP
    total = 0.0
    for d, out in zip(data, result.loss_fn_outputs):
        i = d.loss_fn_inputs
        for j, LOGP in enumerate(out["logprobs"].data):
            if loss == "cross_entropy":
                total -= i["weights"].data[j] * LOGP
            elif i["advantages"].data[j] != 0:
                total += terms(loss, math.exp(LOGP - i["logprobs"].data[j]), i["advantages"].data[j], lo, hi, beta)
    assert abs(total - result.metrics["loss:sum"]) < 1e-5 * (1 + abs(total)), (loss, total, result.metrics)


def step(client, data, loss, config=None, bounds=None):
    future, update = client.forward_backward(data, loss, config), client.optim_step(ADAM)
    result = future.result()
    print(loss, result.metrics, update.result().metrics, file=sys.stderr)
    if bounds:
        check(loss, data, result, *bounds)


def refused(call):
    try:
        call()
    except Exception as e:  # noqa: BLE001: whatever the SDK makes of it
        print("refused:", str(e)[:120], file=sys.stderr)
        return
    raise AssertionError("expected a refusal")


service = tinker.ServiceClient()
service.get_server_capabilities()
lora = service.create_lora_training_client(base_model="digits", rank=4, seed=3).result()
lora.get_info()
CE = [supervised(A, [0.0] * 6 + [1.0] * 5), supervised(B, [0.0] * 3 + [0.5] * 4)]
step(lora, CE, "cross_entropy", None, (0, 0))
base = service.create_sampling_client(base_model="digits").result()
sampler = lora.save_weights_and_get_sampling_client().result()
sampler.sample(prompt=M(A[:6]), num_samples=2, sampling_params=P(max_tokens=6, seed=1),
               include_prompt_logprobs=True, topk_prompt_logprobs=2).result()
sampler.sample(prompt=M(A[:6]), num_samples=1, sampling_params=P(
    max_tokens=4, seed=2, stop=[], temperature=0.7, top_p=0.9, top_k=8)).result()
base.sample(prompt=M(B[:4]), num_samples=1, sampling_params=P(max_tokens=6, stop="4,", temperature=0.0)).result()
base.sample(prompt=M(B[:4]), num_samples=1, sampling_params=P(max_tokens=6, seed=3, stop=[9, 3])).result()
base.compute_logprobs(M(A)).result()
RL = [sampled(A, 6, -2.5, 0.5), sampled(B, 3, -2.75, -0.5)]
step(lora, RL, "importance_sampling", None, (0, 0))
step(lora, RL, "ppo", None, (0.8, 1.2))
step(lora, RL, "ppo", {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1}, (0.9, 1.1))
step(lora, RL, "cispo", None, (0, 4))
step(lora, RL, "dro", {"beta": 0.05}, (0, 0))
step(lora, RL, "gspo")
step(lora, RL, "dppo-binary-tv", {"algo.delta_low": 0.2, "algo.delta_high": 0.2})
step(lora, RL, "rpg-ufkl", {"kl.beta": 0.01})
EMA = {"kl.beta": 0.1, "anchor.kind": "ema", "anchor.eta": 0.9}
step(lora, RL, "importance", {"kl.estimator": "k3", **EMA})
TOP = [sampled(B, 3, -2.75, -0.5, topk_ids=np.array([[6, 7]] * 7, dtype=np.int64),
               topk_logprobs=np.array([[-1.5, -2.0]] * 7, dtype=np.float32))]
step(lora, TOP, "dppo-topk-tv", {"algo.delta_low": 0.9, "algo.delta_high": 0.9, "algo.top_k": 2})
step(lora, TOP, "importance", {"kl.estimator": "topk-reverse", "kl.top_k": 2, **EMA})
check("cross_entropy", CE, lora.forward(CE, "cross_entropy").result(), 0, 0)
lora.forward_backward_custom([types.Datum(model_input=M(B[:-1]), loss_fn_inputs=dict(target_tokens=B[1:]))],
                             lambda data, logp: (sum((x ** 2).sum() for x in logp), {"one:sum": 1.0})).result()
lora.optim_step(ADAM).result()
path = lora.save_state("one").result().path
lora.save_weights_for_sampler("two").result()
step(service.create_training_client_from_state_with_optimizer(path).result(), CE, "cross_entropy")
step(service.create_training_client_from_state(path).result(), CE, "cross_entropy")
full = service.create_lora_training_client(base_model="digits", rank=0).result()
step(full, CE, "cross_entropy", None, (0, 0))
whole = full.save_weights_for_sampler("f").result().path
service.create_sampling_client(model_path=whole).result().compute_logprobs(M(A)).result()

refused(lambda: full.forward_backward(RL, "stable_reinforce").result())
refused(lambda: full.forward_backward(RL, "nothing").result())
refused(lambda: full.forward_backward(RL, "ppo", {"beta": 1.0}).result())
refused(lambda: full.forward_backward(RL, "ppo", {"algo.advantage": "grpo"}).result())
refused(lambda: full.forward_backward(RL, "m2po").result())
refused(lambda: full.forward_backward(CE, "ppo").result())
refused(lambda: full.forward_backward([supervised([3, 4, 99], [1.0, 1.0])], "cross_entropy").result())
refused(lambda: full.optim_step(types.AdamParams(beta1=2.0)).result())
refused(lambda: full.save_state("../x").result())
refused(lambda: full.save_weights_for_sampler("f").result())
refused(lambda: base.sample(prompt=M([3, 99]), num_samples=1, sampling_params=P(max_tokens=2)).result())
refused(lambda: base.sample(prompt=M([3]), num_samples=1, sampling_params=P(max_tokens=64)).result())
refused(lambda: service.create_sampling_client(model_path="tinker://x/weights/y").result())
refused(lambda: service.create_lora_training_client(base_model="other", rank=4).result())
refused(lambda: service.create_lora_training_client(base_model="digits", rank=5000).result())
refused(lambda: service.create_training_client_from_state(whole).result())
rest = tinker.RestClient()
rest.get_training_run(lora.model_id).result()
rest.list_training_runs().result()
rest.list_checkpoints(lora.model_id).result()
rest.get_weights_info_by_tinker_path(path).result()
refused(lambda: rest.get_training_run("none").result())
for r in records:
    if "status" in r and "heartbeat" not in r["path"] and r["status"] != 408:
        print(json.dumps(r))
sys.stdout.flush()
os._exit(0)
