#!/bin/sh
# Recipes over published data run: the part of DeepScaleR that is at hand has two gold answers that nobody can answer. They
# are dropped and counted by the recipe's key, or left out by their ids, with the same run. A random model of two layers
# answers. Run from the top of the tree.
set -u
. tests/harness.sh
told=$work/said
math=../shared/data/math
ids=dsr_sub/265,dsr_sub/1187

[ -x ./kedge ] || skip_all "published data" "./kedge is not built"
[ -r $math/deepscaler_sub_1209.jsonl ] || skip_all "published data" "no $math"
tiny_model --max-positions 4200 || skip_all "published data" "no model could be made"

# train NAME KEY=VALUE...: two steps of the recipe in small; what is said goes to $work/said
train() {
    dir=$work/$1
    shift
    ./kedge train recipes/ema-pg-math-8k.yaml run.dir="$dir" run.threads=2 model.path="$work/tiny" data.val=$math/aime24.jsonl \
        rollout.prompts=2 rollout.samples=2 rollout.max_tokens=8 train.micro_tokens=4200 train.steps=2 eval.problems=2 \
        eval.samples=1 eval.at_start=false checkpoint.every=0 "$@" 2>"$work/said"
}
learned() { [ "$(grep -c '"phase": "rl"' "$work/$1/metrics.jsonl")" -eq 2 ] && grep -q '"phase": "validation"' "$work/$1/metrics.jsonl"; }
says() { grep -qF -e "$1" "$work/said" || { echo "expected: $1"; return 1; }; }

bad_golds_are_dropped_and_counted() {
    train dropped data.train=$math/deepscaler_sub_1209.jsonl && learned dropped &&
        says "0 by task.exclude, 2 whose gold answer is not graded as right" && says dsr_sub/265 && says dsr_sub/1187
}
ids_leave_out_the_same() {
    train named data.train=$math/deepscaler_sub_1209.jsonl task.bad_golds=stop task.exclude=$ids && learned named &&
        says "2 by task.exclude, 0 whose gold answer" &&
        for step in 1 2; do
            cmp "$work/dropped/rollouts/step-00000$step.jsonl.zst" "$work/named/rollouts/step-00000$step.jsonl.zst" || return 1
        done
}
without_either_it_stops_and_says_how() {
    train stopped data.train=$math/deepscaler_sub_1209.jsonl task.bad_golds=stop && { echo "expected a refusal"; return 1; }
    says "task.exclude=\"$ids\"" && [ ! -e "$work/stopped/rollouts/step-000001.jsonl.zst" ]
}
as_it_was_published() {
    train parquet data.train=$math/raw/deepscaler_sub_1209.parquet && learned parquet &&
        says "2 whose gold answer is not graded as right"
}
another_set_and_grader() {
    train other data.train=$math/math_train_7474.jsonl task.grader=dapo task.wrong_reward=-1 && learned other &&
        says "2 whose gold answer is not graded as right"
}

pass "gold answers that nobody can give are dropped and counted" bad_golds_are_dropped_and_counted
pass "their ids leave out the same, and the run is the same" ids_leave_out_the_same
pass "without either the run stops and says how it goes on" without_either_it_stops_and_says_how
pass "the same problems in the Parquet file that was published" as_it_was_published
pass "two of MATH under the grader of DAPO" another_set_and_grader
exit $((failures > 0))
