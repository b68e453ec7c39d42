#!/bin/sh
# ./run real-demo's whole path on a tiny model, without a network: GGUF in, before, GRPO and EMA-PG with adapters, merged, GGUF
# out, after. The model has learned a little first, so that some completions earn a reward and both runs move it.
# Run from the top of the tree.
set -u
. tests/harness.sh

[ -x ./kedge ] || skip_all real-demo "./kedge is not built"
tiny_model --arch llama || skip_all real-demo "no model could be made"
told="$work/said $work/printed"

start() {
    ./kedge sft recipes/smollm2.yaml model.path="$work/tiny" run.dir="$work/warm" run.threads=1 lora.rank=0 \
        sft.data=recipes/smollm2/sums-train.jsonl sft.steps=60 sft.batch=32 sft.lr=3e-3 >"$work/said" 2>&1 &&
        ./kedge export "$work/warm/checkpoints/latest/model" --to "$work/start.gguf" --type f32 >>"$work/said" 2>&1
}
# from another folder: paths are the caller's
demo() { (cd "$work" && "$OLDPWD/tools/real-demo" --quick --out demo "$@" >printed 2>said); }
number() { sed -n "s/.*\"$1\": {[^}]*\"$2\": \([-+0-9.e]*\).*/\1/p" "$work/demo/summary.json"; }
above_0() { awk -v x="$1" 'BEGIN { exit !(x > 0) }'; }
moved() {
    for run in grpo ema_pg; do
        above_0 "$(number $run kl)" || { echo "expected a KL above 0 after $run, found '$(number $run kl)'"; return 1; }
    done
    [ "$(number before kl)" = 0 ]
}
five_samples() { [ "$(grep -c '^    before  ' "$work/printed")" = 5 ] && [ "$(grep -c '^    ema-pg  ' "$work/printed")" = 5 ]; }
rows() { for row in before "after grpo" "after ema-pg"; do grep -q "^$row .* +- .* +- " "$work/printed" || return 1; done; }
# what is written answers as it was measured
written() {
    for run in grpo ema-pg; do
        ./kedge eval --model "$work/demo/$run.gguf" --threads 1 recipes/smollm2/test.yaml --problems 10 -n 1 --reference \
            "$work/start.gguf" --dump "$work/again" >/dev/null 2>"$work/said" && cmp "$work/again" "$work/demo/$run.jsonl" || return 1
    done
    ! cmp -s "$work/demo/grpo.gguf" "$work/demo/ema-pg.gguf"
}
named() {
    grep -q "llama-cli -m .*/demo/ema-pg.gguf" "$work/printed" && grep -q "ollama create .*/demo/Modelfile" "$work/printed" &&
        grep -q "FROM ./ema-pg.gguf" "$work/demo/Modelfile"
}
refused() {
    demo --fast "$work/start.gguf" && return 1
    grep -q "expected --quick, --out DIR or a model, found '--fast'" "$work/said" || return 1
    demo "$work/no.gguf" && return 1
    grep -q 'no.gguf' "$work/said"
}

pass "a tiny model that has learned a little, as a GGUF file" start || exit 1
pass "the demo ends" demo start.gguf
pass "both runs moved the model" moved
pass "five samples of each model are printed" five_samples
pass "its table has three rows" rows
pass "the written files answer as measured" written
pass "the lines that run them are printed" named
pass "a flag and a model that are not there are refused" refused
[ "$failures" = 0 ]
