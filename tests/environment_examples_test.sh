#!/bin/sh
# The examples for environments of other packages: MCP with a server and a policy of the test's own; verifiers and OpenEnv with
# the real packages, where python3 has them (pip install verifiers uv; pip install openenv).
set -u
. tests/harness.sh
[ -x ./kedge ] || skip_all environment_examples_test "./kedge is not built"
command -v python3 >/dev/null || skip_all environment_examples_test "there is no python3"
export PYTHONDONTWRITEBYTECODE=1
data=$PWD/tests/data/environments

# ---- MCP --------------------------------------------------------------------------------------------------------------
python3 "$data/calls.py" >"$work/port" &
pid=$!
for _ in $(seq 200); do [ -s "$work/port" ] && break || sleep 0.1; done
# mcp REPORT PROMPT TRUTH [SERVER]: what the example reports for a question
mcp() {
    printf '{"episode": "a", "url": "http://127.0.0.1:%s/v1", "key": "k", "prompt": "%s", "ground_truth": "%s"}\n' \
        "$(cat "$work/port")" "$2" "$3" | python3 examples/env_mcp.py "${4-python3 $data/shop.py}" >"$work/report"
    grep -q -- "$1" "$work/report" || { cat "$work/report" && false; }
}
pass "a tool of an MCP server is called" mcp '"reward": 1.0}' 'CALL price kat' 23
pass "its result is the observation" mcp '"reward": 0.0}' 'CALL price kat' 41
pass "another argument" mcp '"reward": 1.0}' 'CALL price lim' 41
pass "a tool's own error is told to the policy" mcp '"reward": 1.0}' 'CALL price dor' 'no such thing'
pass "an unknown tool is told to the policy" mcp '"reward": 1.0}' 'CALL buy kat' 'Unknown tool: buy'
pass "an answer without a call" mcp '"reward": 1.0}' 'what is it' 'what is it'
pass "a wrong answer without a call" mcp '"reward": 0.0}' 'what is it' 23
pass "a refused turn is no verdict" mcp '"status": "<HTTPError 400' 'FAIL now' 23
pass "a server that ends is no verdict" mcp '"status": "BrokenPipe\|"status": "EOFError' 'CALL price kat' 23 true
pass "a server that is none is no verdict" mcp '"status": "' 'CALL price kat' 23 'echo hello'
[ "$(wc -l <examples/env_mcp.py)" -le 60 ] || failed "env_mcp has at most 60 lines" ""

# ---- real packages ----------------------------------------------------------------------------------------------------
echo 'say sea tea easy ear word user letters again' >"$work/text"
./kedge new --hidden 32 --ffn 64 --layers 2 --heads 2 --max-positions 512 --dtype fp32 --train-tokenizer "$work/text" \
    --vocab 270 "$work/model" >/dev/null 2>&1 || exit 1
echo "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[a]{% endif %}" \
    >"$work/model/chat_template.jinja"
# plays COMMAND KEYS...: two steps in which each episode has a verdict
plays() {
    command=$1
    shift
    OMP_NUM_THREADS=1 ./kedge train model.path="$work/model" model.dtype=fp32 task.name=environment \
        data.train="$work/train.jsonl" episode.env=external episode.command="$command" episode.turns=3 episode.context=400 \
        rollout.max_tokens=8 rollout.prompts=2 rollout.samples=2 eval.at_start=false run.threads=1 train.steps=2 \
        run.dir="$work/run" "$@" && [ "$(grep -c '"reward/further/status/ok": 1.0' "$work/run/metrics.jsonl")" = 2 ] &&
        grep -q '"reward/ungraded": 0.0' "$work/run/metrics.jsonl"
    status=$?
    rm -rf "$work/run"
    return $status
}
surroundings="PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$data SSL_CERT_FILE=${SSL_CERT_FILE-} UV_SYSTEM_CERTS=1 UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX-}"
verifiers() {
    PYTHONPATH=$data python3 examples/env_verifiers.py kedge_words --data >"$work/train.jsonl" &&
        [ "$(wc -l <"$work/train.jsonl")" = 4 ] &&
        plays "$surroundings python3 examples/env_verifiers.py kedge_words"
}
openenv() {
    for word in sea tea easy ear; do
        echo "{\"prompt\": \"say a word\", \"extra_info\": {\"word\": \"$word\"}}"
    done >"$work/train.jsonl"
    python3 "$data/guess.py" "$work/openenv" &
    other=$!
    for _ in $(seq 600); do [ -s "$work/openenv" ] && break || sleep 0.1; done
    plays "python3 examples/env_openenv.py http://127.0.0.1:$(cat "$work/openenv") message text"
    status=$?
    kill $other
    return $status
}
for package in verifiers openenv; do
    if python3 -c "import $package" 2>/dev/null && { [ $package = openenv ] || command -v uv >/dev/null; }; then
        pass "an environment of $package plays" $package
    else
        skipped "an environment of $package plays" "python3 has no $package (tests/environment_examples_test.sh)"
    fi
    [ "$(wc -l <examples/env_$package.py)" -le 60 ] || failed "env_$package has at most 60 lines" ""
done
exit $((failures > 0))
