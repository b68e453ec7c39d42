#!/bin/sh
# ./run agent-demo on its small budget: every part of it works, each of its episodes has a verdict, and both runs move the
# weights. How well a model learns is what the whole demo measures.
set -u
. tests/harness.sh
[ -x ./kedge ] || skip_all agent_demo_test "./kedge is not built"
command -v python3 >/dev/null || skip_all agent_demo_test "there is no python3"
export PYTHONDONTWRITEBYTECODE=1
told="$work/said $work/printed"

demo() { tools/agent-demo --quick --out "$work/demo" >"$work/printed" 2>"$work/said"; }
rows() { for row in before "after grpo" "after ema-pg"; do grep -q "^$row .* +- " "$work/printed" || return 1; done; }
# no episode of any step or validation was lost
verdicts() {
    for run in grpo ema-pg; do
        [ "$(grep -c '"reward/further/status/ok": 1.0' "$work/demo/$run/metrics.jsonl")" = 2 ] || return 1
        ! grep -q '"reward/ungraded": 0*[.0]*[1-9]' "$work/demo/$run/metrics.jsonl" || return 1
    done
}
weights() { sha256sum <"$work/demo/$1/checkpoints/$2/model/model.safetensors"; }
moved() {
    [ "$(weights grpo latest)" != "$(weights warm step-000000)" ] && [ "$(weights ema-pg latest)" != "$(weights grpo latest)" ]
}
again() { rm -r "$work/demo/grpo" && demo && grep -q "SFT: using" "$work/said" && rows; }
refuses() { ! tools/agent-demo "$@" >"$work/printed" 2>"$work/said" && grep -q "expected" "$work/said"; }

pass "the small agent demo ends with its table" demo
pass "the table has a row for each" rows
pass "every episode has a verdict" verdicts
pass "both runs move the weights" moved
pass "what is there is used again" again
pass "an unknown flag is refused" refuses --fast
pass "a folder is missing" refuses --out
exit $((failures > 0))
