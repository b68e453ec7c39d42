#!/bin/sh
# The example of docs/environments.md as it stands: an environment of one Python function, with which a model made from nothing
# learns; and its weights on one and on two ranks, which each start the program.
set -u
. tests/harness.sh
[ -x ./kedge ] || skip_all environment_test "./kedge is not built"
command -v python3 >/dev/null || skip_all environment_test "there is no python3"
export PYTHONDONTWRITEBYTECODE=1

# the reward of the example, for a model that knows no answers yet: the letters of its first try
sed 's|if answer\["content"\].strip() == task\["ground_truth"\]:|if reward == 1.0:|
     s|return reward$|return sum(c in "say" for c in answer["content"]) / 4|' examples/env_function.py >"$work/letters.py"
for i in $(seq 64); do echo "{\"prompt\": \"say $((i % 4))\", \"answer\": \"$((i % 4))\"}"; done >"$work/train.jsonl"
echo 'say 0 1 2 3 wrong try again' >"$work/text"
./kedge new --hidden 32 --ffn 64 --layers 2 --heads 2 --max-positions 256 --dtype fp32 --train-tokenizer "$work/text" \
    --vocab 270 "$work/model" >/dev/null 2>&1 || exit 1
echo "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[a]{% endif %}" \
    >"$work/model/chat_template.jinja"

# train DIR PROGRAM KEYS...
train() {
    dir=$1 program=$2
    shift 2
    OMP_NUM_THREADS=1 ./kedge train model.path="$work/model" model.dtype=fp32 task.name=environment data.train="$work/train.jsonl" \
        episode.env=external episode.command="python3 $program" episode.turns=1 episode.context=200 rollout.max_tokens=4 \
        rollout.prompts=8 rollout.samples=8 train.lanes=2 optim.lr=1e-2 eval.at_start=false run.threads=1 \
        run.dir="$work/$dir" "$@"
}
reward() { sed -n "s|.*\"reward/mean\": \([0-9.e+-]*\).*|\1|p" "$work/$1/metrics.jsonl" | sed -n "$2p"; }
learns() {
    train learns "$work/letters.py" train.steps=15 || return 1
    awk -v a="$(reward learns 1)" -v b="$(reward learns 15)" 'BEGIN { exit !(b > 2 * a + 0.2) }' ||
        { echo "reward $(reward learns 1), then $(reward learns 15)"; return 1; }
}
as_it_stands() {
    train stands examples/env_function.py train.steps=2 &&
        grep -q '"reward/further/status/ok": 1.0' "$work/stands/metrics.jsonl" && [ "$(wc -l <examples/env_function.py)" -le 60 ]
}
# an endpoint that is not there is no answer of the policy's
mistakes() {
    echo '{"episode": "a", "url": "http://127.0.0.1:1/episode/a/v1", "key": "k", "prompt": "7: kat + lim"}' |
        python3 examples/env_tools.py >"$work/report"
    grep -q '"status": "URLError' "$work/report" && ! grep -q reward "$work/report"
}
ranks() {
    train one "$work/letters.py" train.steps=4 --ranks 1 && train two "$work/letters.py" train.steps=4 --ranks 2 &&
        cmp "$work/one/checkpoints/latest/model/model.safetensors" "$work/two/checkpoints/latest/model/model.safetensors"
}
# a dry run tells that chats would be refused
no_template() {
    said="there is no chat template: requests to /chat/completions will be refused"
    cp -r "$work/model" "$work/bare" && rm "$work/bare/chat_template.jinja" && rm -rf "$work/planned" &&
        train planned examples/env_function.py --dry-run >"$work/plan" && ! grep -q "$said" "$work/plan" || return 1
    for keys in model.path="$work/bare" data.chat_template=none data.template='Q: {prompt}'; do
        train planned examples/env_function.py --dry-run "$keys" >"$work/plan"
        grep -q "$said" "$work/plan" || { echo "$keys" && cat "$work/plan" && return 1; }
    done
}
pass "a dry run names a missing chat template" no_template
pass "the example plays as it stands" as_it_stands
pass "a mistake is no reward of the tools" mistakes
pass "a model learns what a Python function rewards" learns
pass "two ranks, each with its program, have the weights of one" ranks
exit $((failures > 0))
