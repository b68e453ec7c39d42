#!/bin/sh
# `kedge eval` from outside: one checkpoint evaluated here, behind `kedge serve` and in training gives the same samples and
# scores; a killed evaluation ends with the same bytes; two are compared; the published suites are read. A random model of
# two layers answers. Run from the top of the tree.
set -u
. tests/harness.sh
told=$work/said

# evaluate FLAGS...: what is said goes to $work/said; the model here computes with one thread
evaluate() {
    case " $* " in *" --model $work/tiny "*) set -- "$@" --threads 1 ;; esac
    ./kedge eval "$@" >"$work/table" 2>"$work/said"
}
refuses() {
    words=$1
    shift
    evaluate "$@" && { echo "expected a refusal: $words"; return 1; }
    grep -qF -e "$words" "$work/said" || { echo "expected $words"; return 1; }
}

[ -x ./kedge ] || skip_all eval "./kedge is not built"
tiny_model || skip_all eval "no model could be made"

# Problems whose gold answer is one that the model says, so that some answers are right.
problems() {
    for i in 1 2 3 4 5; do
        echo "{\"prompt\":[{\"role\":\"user\",\"content\":\"Problem $i: 7 x \\\"$i\\\"?\"}],\"answer\":\"$1\"}"
    done >"$work/data.jsonl"
}
sets="--data-dir $work suite.seed=7 $work/suite.yaml"
cat >"$work/suite.yaml" <<YAML
sets:
  val:
    task: math
    data: data.jsonl
    samples: 4
    temperature: 0.8
    top_p: 0.95
    max_tokens: 40
    stops: ["."]
    pass_k: [1, 4]
    maj_k: [3]
YAML
problems 1
evaluate $sets --model "$work/tiny" --dump "$work/first.jsonl" || { cat "$work/said"; failed "a first run" ""; exit 1; }
gold=$(sed -n 's/.*"extracted": "\([0-9]\{1,\}\)".*/\1/p' "$work/first.jsonl" | head -1)
problems "${gold:-1}"

# ---- the same samples and scores, three ways ----
# The prompt of the chat API is its messages, not their rendering; all else is compared.
samples_of() { zstd_cat "$1/samples.jsonl.zst" | sed 's/, "prompt": .*, "ground_truth"/, "ground_truth"/; s/"stop_string"/"stop"/'; }
zstd_cat() { ./kedge data head -n 1000 "$1" | sed 's/":/": /g; s/,"/, "/g'; }
locally() { evaluate $sets --model "$work/tiny" --out "$work/local" && samples_of "$work/local" >"$work/local.jsonl" &&
    [ "$(wc -l <"$work/local.jsonl")" = 20 ] && grep -q '"correct": *true' "$work/local.jsonl"; }
echo secret >"$work/key"
serve() {
    ./kedge serve --model "$work/tiny" --port 0 --threads 1 --api-key-file "$work/key" 2>"$work/log" &
    pid=$!
    for _ in $(seq 100); do
        at=$(sed -n 's|^serving tiny at \(http://[^ ]*/v1\) .*|\1|p' "$work/log" 2>/dev/null)
        [ -n "$at" ] && return 0
        sleep 0.05
    done
    return 1
}
by_chat() {
    refuses "expected status 200, found 401" $sets --base-url "$at" || return 1
    evaluate $sets --base-url "$at" --key-file "$work/key" --out "$work/chat" && samples_of "$work/chat" | diff "$work/local.jsonl" - &&
        diff "$work/local/results.json" "$work/chat/results.json"
}
by_completions() {
    evaluate $sets --base-url "$at" --model tiny --api completions --chat-template "$work/tiny/chat_template.jinja" \
        --key-file "$work/key" --out "$work/text-api" --in-flight 3 && samples_of "$work/text-api" | diff "$work/local.jsonl" - &&
        diff "$work/local/results.json" "$work/text-api/results.json" &&
        grep -q 'model: "tiny"' "$work/text-api/config.yaml"
}
# Prompts that leave less than max_tokens of the 512 positions, and a limit that none leaves.
cut_like_here() {
    for limit in 490 600; do
        flags="-n 2 --problems 3 --max-tokens $limit defaults.stops=[] sets.val.stops=[] sets.val.pass_k=[1] sets.val.maj_k=[]"
        evaluate $sets $flags --model "$work/tiny" --out "$work/cut-$limit" || return 1
        evaluate $sets $flags --base-url "$at" --key-file "$work/key" --out "$work/cut-served-$limit" || return 1
        grep -q "3 of 3 prompts leave fewer than max_tokens ($limit) of the server's 512" "$work/said" || return 1
        samples_of "$work/cut-$limit" >"$work/cut.jsonl" && grep -q '"finish_reason": "length"' "$work/cut.jsonl" &&
            samples_of "$work/cut-served-$limit" | diff "$work/cut.jsonl" - &&
            grep -q '"cut_short": [1-3],' "$work/cut-$limit/results.json" &&
            grep -q ' of 3 problems have a completion that ended before max_tokens ' "$work/table" &&
            diff "$work/cut-$limit/results.json" "$work/cut-served-$limit/results.json" || return 1
    done
}
# field NAME FILE: the number behind "NAME": or "NAME": {"value":
field() { sed -n "s#.*\"$1\": \({\"value\": \)\{0,1\}\([-0-9.e]*\).*#\2#p" "$2" | head -1; }
# Of every sample: how it ended, its tokens, whether it was graded, the reward, the text.
of_folder() {
    samples_of "$1" | sed 's/.*"finish_reason": "\([a-z_]*\)", "tokens": \([0-9]*\), "graded": \([a-z]*\), .*"reward": \([^,]*\),.*"response": \(.*\)}$/\1 \2 \3 \4 \5/'
}
of_run() {
    zstd_cat "$1" | sed 's/"stop_string"/"stop"/; s/"reward": null/"reward": 0.0/; s/.*"finish": "\([a-z_]*\)", "reward": \([^,]*\), "graded": \([a-z]*\), .*"source": "p*\(m*\)".*"text": \(.*\)}$/\1 \4 \3 \2 \5/' |
        while read -r finish model rest; do printf '%s %s %s\n' "$finish" "${#model}" "$rest"; done
}
in_training() {
    ./kedge train model.path="$work/tiny" task.name=math log.validation=true data.train="$work/data.jsonl" data.val="$work/data.jsonl" \
        run.seed=7 run.dir="$work/run" eval.samples=4 eval.temperature=0.8 eval.top_p=0.95 rollout.max_tokens=40 \
        'rollout.stop=["."]' rollout.prompts=2 rollout.samples=2 train.steps=1 algo.preset=grpo >"$work/said" 2>&1 ||
        return 1
    of_folder "$work/local" >"$work/evaluated" && of_run "$work/run/rollouts/val-000000.jsonl.zst" >"$work/validated" &&
        [ "$(wc -l <"$work/evaluated")" = 20 ] && grep -q '^[a-z]* [0-9]* true 1.0 "' "$work/evaluated" &&
        diff "$work/evaluated" "$work/validated" || return 1
    grep '"validation"' "$work/run/metrics.jsonl" | head -1 >"$work/val"
    for pair in accuracy:accuracy accuracy_stderr:- reward:reward response_tokens:tokens truncated:truncated; do
        mine=${pair#*:}
        [ "$mine" = - ] && mine=$(sed -n 's/.*"accuracy": {"value": [^,]*, "stderr": \([-0-9.e]*\)}.*/\1/p' \
            "$work/local/results.json" | head -1) || mine=$(field "$mine" "$work/local/results.json")
        [ -n "$mine" ] && [ "$(field "val/${pair%:*}" "$work/val")" = "$mine" ] ||
            { echo "${pair%:*}: expected $mine in:"; cat "$work/val"; return 1; }
    done
}

# A KL needs something that it is to.
kl_is_to_a_reference() {
    one="--model $work/tiny --task countdown --level easy --problems 2 --max-tokens 4 --threads 1"
    ./kedge eval $one >"$work/said" 2>/dev/null && ! grep -q '^KL' "$work/said" &&
        ./kedge eval $one --json 2>/dev/null | grep -q '"kl": null, "kl_k1": null, ' &&
        ./kedge eval $one --reference "$work/tiny" 2>/dev/null | grep -q '^KL  *0.00000 nats a token (K3; K1 0.00000)$' &&
        ./kedge eval $one --reference "$work/tiny" --json 2>/dev/null | grep -q '"kl": 0, "kl_k1": 0, '
}

# ---- taken up again ----
killed() {
    for pause in 0.05 0.12 0.2; do
        timeout -s KILL "$pause" ./kedge eval $sets --model "$work/tiny" --threads 1 --max-batch 2 --out "$work/killed" \
            >/dev/null 2>&1
    done
    evaluate $sets --model "$work/tiny" --out "$work/killed" && diff -r "$work/local" "$work/killed"
}

# ---- ranks ----
over_ranks() {
    for n in 2 3; do
        evaluate $sets --model "$work/tiny" --ranks $n --out "$work/ranks-$n" && diff -r "$work/local" "$work/ranks-$n" || return 1
        [ "$(grep -c '^val ' "$work/table")" = 1 ] || { cat "$work/table"; return 1; }
    done
    evaluate $sets --model "$work/tiny" --ranks 2 --dump "$work/ranks.jsonl" && evaluate $sets --model "$work/tiny" --dump "$work/one.jsonl" &&
        diff "$work/one.jsonl" "$work/ranks.jsonl"
}
# A rank that is asked says what it does; one that is killed ends all, with the status that says so, and another number of ranks goes on.
lost_rank() {
    flags="--model $work/tiny --threads 1 -n 400 --max-tokens 200 defaults.stops=[] sets.val.stops=[]"
    ./kedge eval $sets $flags --ranks 2 --out "$work/lost" >/dev/null 2>"$work/said" &
    pid=$!
    for _ in $(seq 100); do
        [ -s "$work/lost/journal.jsonl" ] && break
        sleep 0.05
    done
    rank=$(sed -n "s/^\([0-9]*\) (kedge) . $pid .*/\1/p" /proc/[0-9]*/stat 2>/dev/null)
    kill -USR1 "$rank" || return 1
    for _ in $(seq 100); do
        grep -q "^rank 1 (.*): state: process $rank" "$work/said" && break
        sleep 0.05
    done
    kill -9 "$rank"
    wait $pid
    status=$?
    pid=
    [ $status = 75 ] && grep -q "^rank 1 (.*): state: process $rank" "$work/said" && grep -qE 'rank 0 \(.*\): rank 1 \(.*\) is gone: ended by signal 9' "$work/said" ||
        { echo "status $status"; return 1; }
}
# A command that does not share its work is refused by each process of a launcher, and by none of a child that was told.
single() {
    for c in "serve --model $work/tiny" "replay $work/no 1" "score --model $work/tiny" "generate --model $work/tiny x" "chat --model $work/tiny"; do
        OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=0 timeout 20 ./kedge $c >/dev/null 2>"$work/said" </dev/null && return 1
        grep -q "^kedge ${c%% *}: expected one process, found a launcher with 4 processes" "$work/said" || return 1
    done
    PMI_SIZE=1 ./kedge generate --model "$work/tiny" --max-tokens 2 x >/dev/null 2>"$work/said" &&
        OMPI_COMM_WORLD_SIZE=4 ./kedge inspect "$work/tiny" >/dev/null 2>"$work/said"
}
not_by_ranks() {
    refuses "--wait-s: expected several processes" $sets --model "$work/tiny" --wait-s 9 &&
        refuses "--ranks: has an effect only without --base-url" $sets --model tiny --base-url http://127.0.0.1:9/v1 --ranks 2 &&
        refuses "--ranks: has an effect only without --dry-run" $sets --model "$work/tiny" --dry-run --ranks 2 &&
        refuses "device: expected cpu, cuda or cuda:N, found auto: each of the 2 ranks" $sets --model "$work/tiny" --device auto --ranks 2 &&
        refuses "x.yaml: cannot open" "$work/x.yaml" --model "$work/tiny" --ranks 2 && [ "$(grep -c 'cannot open' "$work/said")" = 1 ]
}

# ---- comparison ----
compared() {
    evaluate $sets --model "$work/tiny" --seed 8 --out "$work/other" && evaluate compare "$work/local" "$work/other" &&
        grep -q '^val .* accuracy' "$work/table" && grep -q 'pass@4' "$work/table" &&
        ./kedge eval compare "$work/local" "$work/other" --json | grep -q '"resamples": 10000'
}
not_comparable() {
    evaluate $sets --model "$work/tiny" --problems 4 --out "$work/fewer" || return 1
    refuses "set val: expected the same problems, found 5" compare "$work/local" "$work/fewer" &&
        refuses "expected a finished evaluation" compare "$work/local" "$work"
}

# ---- suites ----
published() {
    for suite in suites/ema-pg-math.yaml suites/rpg.yaml suites/dppo.yaml; do
        evaluate "$suite" --dry-run --data-dir "$work/none" || return 1
        grep -q 'MISSING .*/aime24.jsonl, 30 records, from ' "$work/table" || { cat "$work/table"; return 1; }
        refuses "files missing: aime24: " "$suite" --data-dir "$work/none" --model "$work/tiny" --out "$work/no" || return 1
        [ -e "$work/no" ] && return 1
        sed -n 's/.*MISSING [^,]*\/\([^,/]*\), \([0-9]*\) records.*/\1 \2/p' "$work/table" >"$work/counts"
        [ -d ../shared/data/math ] || continue
        while read -r file count; do
            [ "$(wc -l <"../shared/data/math/$file")" = "$count" ] || { echo "$file: $count"; return 1; }
        done <"$work/counts"
    done
    evaluate suites/ema-pg-math.yaml --dry-run --without amc,amc25 --data-dir "$work/none" &&
        grep -q 'ema-pg-math.yaml: 5 sets, ' "$work/table" && grep -q '^left out: amc25$' "$work/table" || return 1
    for suite in suites/*.yaml; do
        evaluate "$suite" --dry-run --data-dir "$work/none" && grep -q '^[0-9]* of [0-9]* sets lack' "$work/table" ||
            return 1
    done
}
# A plan fails where the evaluation would with every file there.
planned() {
    evaluate $sets --dry-run && refuses "which no record has" $sets sets.val.exclude=zz --dry-run &&
        grep -q '5 problems x 4 samples' "$work/table" &&
        refuses "which no record has" --task arithmetic --level easy --exclude zz --dry-run &&
        refuses "found 1 of 1 with errors" $sets sets.val.expect=4 --dry-run &&
        grep -q 'cannot be used: .*expected 4 records, found 5' "$work/table" &&
        evaluate $sets --dry-run --data-dir "$work/none" sets.val.exclude=1 && grep -q '1 of 1 sets lack' "$work/table" &&
        grep -q "found '1', which no record has of those that were read" "$work/said"
}
wrong() {
    refuses "did you mean 'sets.val.samples'?" "$work/suite.yaml" sets.val.sample=2 --model "$work/tiny" &&
        refuses "expected a k from 1 to the number of samples, 2, found '4'" $sets -n 2 --model "$work/tiny" &&
        refuses "x.yaml: cannot open" "$work/x.yaml" --model "$work/tiny" &&
        refuses "sets.val.temperature: 0.8 -> 0.5" $sets -t 0.5 --model "$work/tiny" --out "$work/local" &&
        refuses "expected --model DIR, or --base-url URL" "$work/suite.yaml" &&
        refuses "expected compare DIR_A DIR_B" compare "$work/local" &&
        refuses "no/config.json: cannot open" $sets --model "$work/no" --dry-run &&
        refuses "--in-flight: has an effect only with --base-url" $sets --model "$work/tiny" --in-flight 16 &&
        refuses "--max-batch: has an effect only without --base-url" $sets --base-url http://127.0.0.1:9/v1 --max-batch 64 &&
        refuses "--data-dir: expected a set with a relative path" --task arithmetic --level easy --data-dir x --dry-run &&
        refuses "expected one suite" "$work/suite.yaml" "$work/suite.yaml" --model "$work/tiny" &&
        refuses "user_turn: true (--user-turn) sends it as a user message" --base-url http://127.0.0.1:9/v1 --model m --task arithmetic --level easy
}

pass "a suite is run here" locally
serve || failed "a server starts" "$(cat "$work/log")"
pass "the same samples and scores through the chat API of kedge serve" by_chat
pass "the same samples and scores through the completions API" by_completions
pass "answers get what their prompts leave of the server's positions, as here" cut_like_here
kill "$pid" && wait "$pid"
pid=
pass "the same samples and scores in the validation of training" in_training
pass "a KL is printed where there is a reference" kl_is_to_a_reference
pass "a killed evaluation ends with the same bytes" killed
pass "several ranks leave the folder of one process" over_ranks
pass "a rank that is killed ends the evaluation with status 75" lost_rank
pass "commands that do not share their work say so below a launcher" single
pass "what ranks cannot do is refused" not_by_ranks
pass "two evaluations are compared" compared
pass "other problems are not compared" not_comparable
pass "the published suites are read and say what is missing" published
pass "a plan refuses what the evaluation would" planned
pass "wrong requests say what was expected" wrong
[ "$failures" = 0 ]
