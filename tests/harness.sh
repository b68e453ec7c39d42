# What tests that are shell scripts share; source it from the top of the tree:  . tests/harness.sh
#
# A folder of the test's own in $work, gone at the end with the process $pid, if one is named there; and the lines that
# cmocka would print, for tools/run-tests. $told: the files that are shown with a test that failed.
work=$(mktemp -d) || exit 1
pid=
trap '[ -n "$pid" ] && kill "$pid" 2>/dev/null; rm -rf "$work"' EXIT
failures=0
told=

ok() { echo "[       OK ] $1"; }
failed() { echo "$2"; echo "[  FAILED  ] $1"; failures=$((failures + 1)); }
# skipped NAME WHY
skipped() { echo "skip: $2"; echo "[  SKIPPED ] $1"; }
# pass NAME COMMAND...: one test; what the command says is shown when it fails
pass() {
    name=$1
    shift
    if "$@" >"$work/out" 2>&1; then ok "$name"; else failed "$name" "$(cat "$work/out" $told 2>&1)"; fi
}
skip_all() { skipped "$@"; exit 0; }

# tiny_model FLAGS...: a random chat model of two layers in $work/tiny. Its tokenizer comes from texts that do not change, so
# that its answers do not either, and from numbers, so that some answers hold one.
tiny_model() {
    { cat LICENSE tests/data/tokenizer/corpus.txt; seq 0 3 9999; } >"$work/text"
    ./kedge new --hidden 64 --layers 2 --heads 2 --max-positions 512 "$@" --train-tokenizer "$work/text" --vocab 600 \
        "$work/tiny" >/dev/null 2>&1 || return 1
    cp tests/data/chat_templates/Qwen-Qwen1.5-72B-Chat.jinja "$work/tiny/chat_template.jinja"
}
