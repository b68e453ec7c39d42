#!/bin/bash
# The program without its guests (make GUESTS=): it links, it works, and what is not there is refused by its name.
. tests/harness.sh
trunk=$(dirname "$0")/../trunk
[ -x "$trunk" ] && [ -x ./kedge ] || skip_all trunk_test "kedge is not built"

# refused STATUS GUEST WORDS COMMAND...: one line that names the guest
refused() {
    wanted=$1 guest=$2 words=$3
    shift 3
    "$@" </dev/null >"$work/none" 2>"$work/said"
    found=$?
    [ "$found" = "$wanted" ] && grep -qF -- "$words: expected a kedge with guests/$guest, found one that was built without it" "$work/said" &&
        [ "$(wc -l <"$work/said")" = 1 ] && [ ! -s "$work/none" ] && return 0
    echo "expected status $wanted and '$words', found $found and: $(cat "$work/said")"
    return 1
}
# the commands that help names, in full or with a mark that one is missing
commands() { "$1" --help | sed -n 's/^  \([a-z-]*\) .*/\1/p'; }
missing() { "$trunk" --help | sed -n 's/^  \([a-z-]*\) .* (not in this build)$/\1/p'; }

same_commands() { commands "$trunk" >"$work/a" && commands ./kedge | diff "$work/a" - && [ "$(wc -l <"$work/a")" -gt 25 ]; }
pass "its help names every command" same_commands
pass "and says which are not there" [ "$(missing | xargs)" = "replay table embed export wiki search algorithms policy" ]
pass "the whole program lacks none" sh -c '! ./kedge --help | grep "not in this build"'

missing_commands() {
    for c in $(missing); do
        guest=lab
        case $c in embed | search) guest=retriever ;; esac
        [ "$c" != export ] || guest=gguf
        refused 1 $guest "kedge $c: this command" "$trunk" "$c" x y && refused 1 $guest "this command" "$trunk" "$c" --help || return 1
    done
}
pass "a command that is not there says so" missing_commands
same_texts() {
    for c in $(commands ./kedge); do
        if missing | grep -qx "$c"; then continue; fi
        "$trunk" "$c" --help >"$work/a" 2>&1
        ./kedge "$c" --help 2>&1 | diff "$work/a" - || return 1
    done
}
pass "the others have their help" same_texts
missing_benchmarks() {
    for b in ops head; do refused 1 lab "kedge bench: $b" "$trunk" bench $b || return 1; done
    for b in encode search; do refused 1 retriever "kedge bench: $b" "$trunk" bench $b || return 1; done
    refused 1 lab "bench ranks" "$trunk" bench ranks && refused 1 lab "bench serve" "$trunk" bench serve
}
pass "so does a benchmark" missing_benchmarks
missing_modes() {
    for m in ema-pg mathd dapo; do refused 1 lab "mode: $m" "$trunk" grade --kind math --mode $m || return 1; done
    echo '{"problem": "1", "answer": "1"}' >"$work/math.jsonl"
    refused 1 lab "mode: dapo" "$trunk" train recipes/gsm8k.yaml "data.train=$work/math.jsonl" model.path=tests/data/verl_digit_llama \
        task.name=math task.grader=dapo run.dir="$work/none" algo.preset=grpo --dry-run
}
pass "so does a published grader" missing_modes
same_keys() { "$trunk" train --keys >"$work/a" && ./kedge train --keys | cmp - "$work/a"; }
pass "the keys of a recipe are the same" same_keys
checked() { "$trunk" doctor >"$work/a" && grep -q '^Sampler and trainer agree' "$work/a"; }
pass "doctor checks this machine" checked
same_answer() {
    for k in "$trunk" ./kedge; do "$k" generate -m tests/data/verl_digit_llama --max-tokens 8 --seed 3 12 2>/dev/null || return 1; done >"$work/a"
    [ "$(sort -u "$work/a" | wc -l)" = 1 ]
}
pass "a model answers with the same text" same_answer

pass "Tinker's API is not there" refused 1 tinker "kedge serve: --train" "$trunk" serve -m tests/data/verl_digit_llama --train "$work/none"
no_wordpiece() { refused 1 retriever "tokenizer.json: model.type: WordPiece" "$trunk" tokenize -m tests/data/encoder/bert; }
pass "a tokenizer of WordPiece is refused" no_wordpiece

# ---- a run with a search tool ----
bert=tests/data/encoder/bert
for i in $(seq 70); do echo "{\"id\": \"$i\", \"contents\": \"Page $i\nthe cat sat on $((i * i)) mats\"}"; done >"$work/corpus"
./kedge search index --dense $bert "$work/corpus" "$work/dense.db" >"$work/made" 2>&1 || cat "$work/made"
echo '{"question": "How many cats?", "golden_answers": ["49"]}' >"$work/questions.jsonl"
sed 's/"id": "[0-9]*", "contents"/"text"/' "$work/corpus" >"$work/texts"
./kedge new --arch qwen2 --hidden 16 --ffn 32 --layers 1 --heads 2 --kv-heads 2 --tie --seed 1 --max-positions 512 \
    --train-tokenizer "$work/texts" --vocab 270 "$work/tiny" >"$work/made" 2>&1 || cat "$work/made"
searching() {
    "$1" train recipes/search-small.yaml model.path="$work/tiny" data.train="$work/questions.jsonl" data.val= sft.data= sft.steps=0 \
        search.where="$work/dense.db" algo.preset=grpo train.steps=1 rollout.prompts=2 checkpoint.every=0 run.dir="$work/$2" "${@:3}"
}
same_run() {
    for k in "$trunk" ./kedge; do searching "$k" "run-$(basename "$k")" >"$work/said" 2>&1 || { cat "$work/said" && return 1; }; done
    cmp "$work/run-trunk/checkpoints/latest/model/model.safetensors" "$work/run-kedge/checkpoints/latest/model/model.safetensors"
}
pass "a run finds in an index by words" same_run
vectors_are_refused() {
    for kind in dense hybrid; do
        searching "$trunk" none search.kind=$kind search.model=$bert >"$work/said" 2>&1 && return 1
        grep -q 'search.kind dense and hybrid: expected a kedge with guests/retriever' "$work/said" || { cat "$work/said" && return 1; }
    done
}
pass "by its vectors nothing is found" vectors_are_refused
exit $((failures > 0))
