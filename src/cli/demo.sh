#!/bin/sh
# kedge demo, run by sh: a language model made from nothing, made mediocre on purpose, and made good by reinforcement
# learning, twice from the same start: GRPO against a fixed anchor with K3, and EMA-PG (Top-k KL with tail against an EMA
# anchor). It is a part of the program: cmd_demo.c gives it the program's path as $0, then
#
#   OUT PROBLEMS SFT_STEPS RL_STEPS [KEY=VALUE ...]
#
# RL_STEPS 0: only the model before RL, made with these keys; prints its folder. What OUT has already (tokenizer, model, SFT)
# is used again, and it says so.
set -eu
started=$(date +%s)
out=$1 problems=$2 sft_steps=$3 rl_steps=$4
shift 4
level=easy harder=medium
warm=$out/warm/checkpoints/step-000000/model

kedge() { "$0" "$@"; }
say() { printf '\n== %s\n' "$*" >&2; }

if [ -f "$out/model/model.safetensors" ]; then
    say "tokenizer and model: using those in $out/model"
else
    say "a BPE tokenizer of 560 tokens on the task's own text, and a Qwen2-shaped model with random weights"
    kedge task arithmetic --level $level+$harder --count 8000 --text >"$out/corpus.jsonl"
    rm -rf "$out/model"
    kedge new --arch qwen2 --hidden 128 --ffn 384 --layers 4 --heads 4 --kv-heads 2 --tie --max-positions 512 \
        --train-tokenizer "$out/corpus.jsonl" --vocab 560 --seed 1 "$out/model" >&2
fi
common="run.seed=1 task.name=arithmetic task.level=$level+$harder rollout.max_tokens=64 data.max_prompt_tokens=64"
if [ -d "$warm" ]; then
    say "SFT: using $out/warm"
else
    say "SFT: worked solutions of which three in four have a faulty step"
    rm -rf "$out/warm"
    # shellcheck disable=SC2086
    kedge sft $common run.dir="$out/warm" model.path="$out/model" sft.steps="$sft_steps" sft.batch=64 sft.lr=3e-3 \
        sft.count=60000 sft.fault_rate=0.75 eval.at_start=false checkpoint.dtype=fp32 "$@" >&2
fi
if [ "$rl_steps" -eq 0 ]; then
    echo "$warm"
    exit
fi

evaluate() { # name, model, level
    kedge eval --model "$2" --task arithmetic --level "$3" --problems "$problems" --max-tokens 64 --seed 7 \
        --max-batch 256 --reference "$warm" --json >"$out/$1.$3.json"
}

# ---- the same reinforcement learning, twice -------------------------------------------------------------------------
train() { # name, overrides
    name=$1
    shift
    rm -rf "${out:?}/$name"
    # shellcheck disable=SC2086
    kedge train $common run.dir="$out/$name" model.path="$warm" rollout.prompts=64 rollout.samples=8 \
        rollout.max_batch=256 optim.lr=1e-4 optim.beta2=0.95 optim.warmup_steps=3 train.steps="$rl_steps" \
        train.updates_per_step=4 train.micro_tokens=8192 train.checkpoint_layers=false kl.beta=0.01 eval.every=10 log.rollouts=false checkpoint.keep=1 \
        checkpoint.dtype=fp32 "$@"
}
say "before"
evaluate before "$warm" $level
evaluate before "$warm" $harder
for preset in grpo ema-pg; do
    say "RL: $preset"
    # the anchor's time constant, period / (1 - eta), is 20 % of the run
    case $preset in
    ema-pg) train $preset algo.preset=$preset anchor.period=1 anchor.eta="$(awk "BEGIN {t = 0.2 * $rl_steps; print (t > 1.1 ? 1 - 1 / t : 0.1)}")" ;;
    *) train $preset algo.preset=$preset ;;
    esac
    model=$out/$preset/checkpoints/latest/model
    evaluate $preset "$model" $level
    evaluate $preset "$model" $harder
done

kedge report "$out/grpo" "$out/ema-pg" --out "$out/report.html" >&2

# ---- the table ------------------------------------------------------------------------------------------------------
# field NAME FILE: one number of a line of JSON
field() { sed -n "s/.*\"$1\": \([-+0-9.e]*\).*/\1/p" "$2" | head -1; }
seconds=$(($(date +%s) - started))
row() { # title, name
    awk -v t="$1" -v a="$(field accuracy "$out/$2.$level.json")" -v e="$(field stderr "$out/$2.$level.json")" \
        -v h="$(field accuracy "$out/$2.$harder.json")" -v he="$(field stderr "$out/$2.$harder.json")" \
        -v k="$(field kl "$out/$2.$level.json")" -v s="$(field entropy "$out/$2.$level.json")" \
        'BEGIN { printf "%-18s %6.1f +- %.1f   %6.1f +- %.1f   %10.4f %10.3f\n", t, 100*a, 100*e, 100*h, 100*he, k, s }'
}
object() { # name
    printf '{"accuracy": %s, "stderr": %s, "kl": %s, "entropy": %s, "accuracy_harder": %s, "stderr_harder": %s}' \
        "$(field accuracy "$out/$1.$level.json")" "$(field stderr "$out/$1.$level.json")" \
        "$(field kl "$out/$1.$level.json")" "$(field entropy "$out/$1.$level.json")" \
        "$(field accuracy "$out/$1.$harder.json")" "$(field stderr "$out/$1.$harder.json")"
}
printf '{"before": %s, "grpo": %s, "ema_pg": %s, "seconds": %s}\n' \
    "$(object before)" "$(object grpo)" "$(object ema-pg)" "$seconds" >"$out/summary.json"
{
    printf '\n%-18s %-16s %-16s %10s %10s\n' "" "accuracy, %" "harder level, %" "KL to start" "entropy"
    row before before
    row "after grpo" grpo
    row "after ema-pg" ema-pg
    printf '\n%s held-out problems a level, %s seconds. One seed shows that it works, not which is better.\n' \
        "$problems" "$seconds"
    printf 'Numbers in %s, curves in %s\n' "$out/summary.json" "$out/report.html"
}
