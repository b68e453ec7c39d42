#!/bin/sh
# `kedge serve` as a client meets it: curl against every endpoint, streams, errors, the key, a client that leaves, and
# the drain. A random model of two layers answers. Run from the top of the tree.
set -u
. tests/harness.sh
told="$work/body $work/log"

[ -x ./kedge ] || skip_all serve "./kedge is not built"
command -v curl >/dev/null || skip_all serve "there is no curl"
tiny_model --no-tie || skip_all serve "no model could be made"

# start FLAGS...: a server on a free port; its address in $at
start() {
    rm -f "$work/log"
    ./kedge serve --model "$work/tiny" --port 0 --threads 1 "$@" 2>"$work/log" &
    pid=$!
    for _ in $(seq 100); do
        at=$(sed -n 's|^serving .* at \(http://[^ /]*\)[/ ].*|\1|p' "$work/log" 2>/dev/null)
        [ -n "$at" ] && return 0
        sleep 0.05
    done
    return 1
}
stop() {
    kill -TERM "$pid" && wait "$pid"
    status=$?
    pid=
    return $status
}
# ask STATUS PATH CURL-ARGS...: the body in $work/body
ask() {
    expected=$1 path=$2
    shift 2
    got=$(curl -sS -m 10 -o "$work/body" -w '%{http_code}' "$@" "$at$path") || return 1
    [ "$got" = "$expected" ] || { echo "expected status $expected, got $got"; return 1; }
}
has() { for part; do grep -qF -e "$part" "$work/body" || { echo "expected $part in:"; cat "$work/body"; return 1; }; done; }
lacks() { ! grep -qF -e "$1" "$work/body" || { echo "did not expect $1"; return 1; }; }
# field KEY: the number or quoted text behind the first "KEY":
# ids KEY: those behind "KEY":
ids() { sed -n "s/.*\"$1\": \[\([0-9,]*\)\].*/\1/p" "$work/body"; }
error() { ask "$@" && has '{"error": {"message": ' '"type": ' '"param": ' '"code": '; }
field() { sed -n "s/.*\"$1\": \(\"[^\"]*\"\|[-0-9.]*\).*/\1/p" "$work/body" | head -1; }

# ---- endpoints ----
health() { ask 200 /health && has '"ok"'; }
models() {
    ask 200 /v1/models && has '"object": "list"' '"id": "tiny"' '"max_model_len": 512' &&
        ask 200 /v1/models/tiny && has '"object": "model"' && ask 404 /v1/models/other && has 'not_found'
}
completion() {
    ask 200 /v1/completions -d '{"model":"tiny","prompt":"Hello","max_tokens":5,"seed":1,"logprobs":2,"ignore_eos":true}' &&
        has '"object": "text_completion"' '"finish_reason": "length"' '"completion_tokens": 5' '"top_logprobs": [{' \
            '"text_offset": [0, ' '"seed": 1'
}
chat() {
    ask 200 /v1/chat/completions -d '{"messages":[{"role":"user","content":[{"type":"text","text":"Hi"}]}],
        "max_completion_tokens":3,"n":2,"logprobs":true,"top_logprobs":2,"temperature":0.7,"user":"me",
        "ignore_eos":true}' &&
        has '"object": "chat.completion"' '"role": "assistant"' '"index": 1' '"bytes": [' '"refusal": null' \
            '"completion_tokens": 6'
}
prompts_of_all_kinds() {
    ask 200 /v1/completions -d '{"prompt":["a","b"],"max_tokens":2,"n":2,"ignore_eos":true}' && has '"index": 3' '"completion_tokens": 8' &&
        ask 200 /v1/completions -d '{"prompt":[5,6,7],"max_tokens":2,"return_token_ids":true}' &&
        has '"prompt_token_ids": [5,6,7]' &&
        ask 200 /v1/completions -d '{"prompt":[[5],[6,7]],"max_tokens":1}' && has '"prompt_tokens": 3' &&
        ask 200 /v1/completions -d '{"prompt":"echo ","max_tokens":1,"echo":true}' && has '"text": "echo '
}
# What a prompt becomes, and back; the ids are those that a chat request gets.
tokens() {
    ask 200 /tokenize -d '{"prompt":"Hello there"}' && has '"count": ' '"max_model_len": 512' || return 1
    found=$(ids tokens)
    ask 200 /detokenize -d "{\"tokens\":[$found]}" && has '{"prompt": "Hello there"}' &&
        ask 200 /tokenize -d '{"messages":[{"role":"user","content":"Hi"}]}' || return 1
    found=$(ids tokens)
    ask 200 /v1/chat/completions -d '{"messages":[{"role":"user","content":"Hi"}],"max_tokens":1,"return_token_ids":true}' &&
        has "\"prompt_token_ids\": [$found]" && error 400 /tokenize -d '{"tokens":[1]}' && error 400 /detokenize -d '{"tokens":[600]}'
}
# Alone or in company, the bits are those of `kedge generate`.
same_bits() {
    with='"prompt":"A prompt","max_tokens":12,"temperature":0.8,"top_k":50,"stop":["zq"]'
    for seed in 7 4084 123456789; do
        ./kedge generate -m "$work/tiny" --served --seed $seed --max-tokens 12 --logprobs --temperature 0.8 --top-k 50 \
            --stop zq "A prompt" >"$work/line" 2>/dev/null
        sed 's/.*"logprobs": \(\[[^]]*\]\), .*/\1/' "$work/line" >"$work/one"
        sed 's/.*"text": "\(.*\)", "finish.*/\1/' "$work/line" >>"$work/one"
        for _ in 1 2 3 4; do
            curl -sS -m 10 "$at/v1/completions" -d '{"prompt":"other text","max_tokens":30,"temperature":2}' >/dev/null &
        done
        ask 200 /v1/completions -d "{$with,\"seed\":$seed,\"logprobs\":0}" || return 1
        { cat "$work/body"; echo; } >"$work/line"
        sed 's/.*"token_logprobs": \(\[[^]]*\]\).*/\1/' "$work/line" >"$work/two"
        sed 's/.*"text": "\(.*\)", "logprobs".*/\1/' "$work/line" >>"$work/two"
        diff "$work/one" "$work/two" || return 1
        ask 200 /v1/completions -d "{$with,\"seed\":$seed,\"stream\":true}" || return 1
        { sed -n 's/.*"text": "\(.*\)", "logprobs".*/\1/p' "$work/body" | tr -d '\n'; echo; } >"$work/three"
        tail -1 "$work/one" | diff - "$work/three" || return 1
    done
}
# Log-probs of a prompt are those of kedge score, alone, in company, in pieces, and without an answer.
echo_scores() {
    ids=$(seq 0 7 599 | paste -sd, -)
    echo "{\"ids\":[$ids]}" | ./kedge score -m "$work/tiny" | sed 's/.*\[[^,]*, *\(.*\)\].*/\1/; s/, */,/g' >"$work/one"
    [ -s "$work/one" ] || return 1
    for tail in '"max_tokens":0' '"max_tokens":1,"n":2' '"max_tokens":0,"stream":true'; do
        for _ in 1 2 3; do
            curl -sS -m 10 "$at/v1/completions" -d '{"prompt":[1,2,3],"max_tokens":20,"echo":true,"logprobs":3}' >/dev/null &
        done
        ask 200 /v1/completions -d "{\"prompt\":[$ids],\"echo\":true,\"logprobs\":1,\"temperature\":0,$tail}" || return 1
        sed -n 's/.*"token_logprobs": \[null, \([^]]*\)\].*/\1/p' "$work/body" | head -1 | sed 's/, */,/g' |
            cut -d, -f1-85 | diff "$work/one" - || return 1
    done
    ask 200 /v1/completions -d '{"prompt":"Hello there","echo":true,"logprobs":1,"max_tokens":0}' &&
        has '"text": "Hello there"' '"top_logprobs": [null, {' '"text_offset": [0, ' '"completion_tokens": 0' '"length"' &&
        ask 400 /v1/completions -d '{"prompt":"x","max_tokens":0}' && has 'together with echo'
}
# What is added to the logits decides what is drawn; the log-probs are those of kedge score, as ever.
adjusted() {
    with='"prompt":[5,6],"temperature":0,"max_tokens":12'
    ask 200 /v1/completions -d "{$with,\"logit_bias\":{\"77\":100},\"return_token_ids\":true}" && has '"token_ids": [77,77,77,77,77,77,77,77,77,77,77,77]' &&
        ask 200 /v1/completions -d "{$with,\"logit_bias\":{\"77\":100},\"logprobs\":0}" &&
        sed -n 's/.*"token_logprobs": \[\([^]]*\)\].*/\1/p' "$work/body" | sed 's/, */,/g' >"$work/two" &&
        echo >>"$work/two" && echo '{"ids":[5,6,77,77,77,77,77,77,77,77,77,77,77,77]}' | ./kedge score -m "$work/tiny" |
        sed 's/.*\[[^,]*, *[^,]*, *\(.*\)\].*/\1/; s/, */,/g' | diff - "$work/two" || return 1
    with="$with"',"return_token_ids":true'
    ask 200 /v1/completions -d "{$with,\"logit_bias\":{\"77\":99,\"78\":98.3,\"79\":97.6},\"presence_penalty\":2,
        \"frequency_penalty\":2}" && has '"token_ids": [77,78,79,77,78,79,77' || return 1 # said once: 4 less, then 2 less each time
    # what the prompt has counts, and each id once: 78 and 79 are new, then 77 has the most left
    ask 200 /v1/completions -d '{"prompt":[5,77],"temperature":0,"max_tokens":5,"return_token_ids":true,"repetition_penalty":10,
        "logit_bias":{"77":99,"78":90,"79":50}}' && has '"token_ids": [78,79,77,77,77]' &&
        ask 400 /v1/completions -d '{"prompt":"x","repetition_penalty":1.1,"return_token_ids":true,"logprobs":0}' &&
        has 'together with return_token_ids and logprobs'
}
a_seed_is_told() {
    ask 200 /v1/completions -d '{"prompt":"x","max_tokens":6}' || return 1
    first=$(field text) seed=$(field seed)
    ask 200 /v1/completions -d '{"prompt":"x","max_tokens":6,"seed":'"$seed"'}' && [ "$(field text)" = "$first" ]
}

# ---- streams ----
stream_chat() {
    ask 200 /v1/chat/completions -d '{"messages":[{"role":"user","content":"Hi"}],"max_tokens":4,"seed":1,"stream":true,
        "ignore_eos":true,"stream_options":{"include_usage":true}}' &&
        has 'data: {"id": "chatcmpl-' '"delta": {"role": "assistant", "content": ' '"delta": {}' '"choices": []' \
            '"completion_tokens": 4' 'data: [DONE]' '"usage": null' &&
        [ "$(tail -c 14 "$work/body")" = "data: [DONE]" ]
}
# The piece that ends an answer has no content, whatever waited for it.
the_end_is_empty() {
    for with in '"max_tokens":9' '"max_tokens":1' '"max_tokens":40,"stop":["zq","e"]' '"max_tokens":6,"n":3' '"max_tokens":30,"stop":"the"'; do
        ask 200 /v1/chat/completions -d '{"messages":[{"role":"user","content":"Hi"}],"seed":4,"ignore_eos":true,"stream":true,'"$with}" || return 1
        grep -c '"finish_reason": "' "$work/body" >/dev/null || { echo "no end: $with"; return 1; }
        ! grep '"finish_reason": "' "$work/body" | grep -v '"delta": {}' || { echo "$with"; return 1; }
    done
}
# Special tokens are no text, unless they are asked for; the one that ends an answer never is.
special_tokens() {
    with='"prompt":"x","max_tokens":2,"temperature":0' start='<|im_start|>'
    for more in '' ',"stream":true'; do
        ask 200 /v1/completions -d "{$with,\"logit_bias\":{\"598\":100}$more}" && lacks "$start" &&
            ask 200 /v1/completions -d "{$with,\"logit_bias\":{\"598\":100},\"skip_special_tokens\":false$more}" &&
            [ "$(grep -o "$start" "$work/body" | wc -l)" -eq 2 ] &&
            ask 200 /v1/completions -d "{$with,\"logit_bias\":{\"597\":100},\"skip_special_tokens\":false$more}" &&
            has '"finish_reason": "stop"' && lacks '<|endoftext|>' || return 1
        ask 200 /v1/completions -d "{$with,\"logit_bias\":{\"598\":100},\"stop_token_ids\":[598],\"skip_special_tokens\":false$more}" &&
            has '"finish_reason": "stop"' && lacks "$start" || return 1
        ask 200 /v1/completions -d "{$with,\"logit_bias\":{\"597\":100},\"ignore_eos\":true,\"skip_special_tokens\":false$more}" &&
            [ "$(grep -o '<|endoftext|>' "$work/body" | wc -l)" -eq 2 ] || return 1
    done
    ask 200 /v1/completions -d "{$with,\"logit_bias\":{\"598\":100},\"skip_special_tokens\":false,\"logprobs\":0}" && has '"text_offset": [0, 12]' &&
        ask 200 /v1/completions -d "{$with,\"logit_bias\":{\"598\":100},\"logprobs\":0}" && has '"text_offset": [0, 0]' &&
        error 400 /v1/completions -d '{"prompt":"x","skip_special_tokens":0}' && has 'true or false'
}
stop_strings_never_leak() {
    ask 200 /v1/completions -d '{"prompt":"x","max_tokens":60,"seed":5}' || return 1
    text=$(sed -n 's/.*"text": "\(.*\)", "logprobs".*/\1/p' "$work/body")
    # two letters from the middle of the answer
    word=$(printf %s "$text" | grep -o '[a-z][a-z]' | sed -n 4p)
    [ -n "$word" ] || { echo "no word in $text"; return 1; }
    ask 200 /v1/completions -d '{"prompt":"x","max_tokens":60,"seed":5,"stream":true,"stop":["'"$word"'"]}' &&
        has '"finish_reason": "stop"' || return 1
    sed -n 's/.*"text": "\(.*\)", "logprobs".*/\1/p' "$work/body" | tr -d '\n' >"$work/told"
    ! grep -qF -e "$word" "$work/told" && printf %s "$text" | grep -qF -e "$(cat "$work/told")$word"
}

# ---- tools ----
# A model that has learned one call by heart: the template of Qwen2.5 writes it as <tool_call>.
tools='[{"type":"function","function":{"name":"weather","parameters":{"type":"object","properties":{"city":{"type":"string"}}}}}]'
call='{"type":"function","function":{"name":"weather","arguments":{"city":"Bern"}}}'
asked='{"role":"user","content":"Weather?"}'
learn_a_call() {
    ./kedge new --hidden 64 --layers 2 --heads 2 --max-positions 4096 --no-tie --train-tokenizer "$work/text" --vocab 600 \
        "$work/caller" && cp tests/data/chat_templates/Qwen-Qwen2.5-7B-Instruct.jinja "$work/caller/chat_template.jinja" &&
        echo "{\"messages\":[$asked,{\"role\":\"assistant\",\"content\":\"I look.\",\"tool_calls\":[$call]}],\"tools\":$tools}" \
            >"$work/call.jsonl" &&
        ./kedge sft model.path="$work/caller" run.dir="$work/run" sft.data="$work/call.jsonl" task.name=countdown \
            task.level=easy data.chat_template=auto sft.steps=80 sft.batch=1 sft.lr=1e-2 sft.warmup_steps=5 \
            eval.problems=1 eval.at_start=false rollout.max_tokens=4 && rm -rf "$work/tiny" &&
        mv "$work/run/checkpoints/latest/model" "$work/tiny"
}
ask_caller() { ask 200 /v1/chat/completions -d "{\"messages\":[$1],\"tools\":$tools,\"temperature\":0,\"max_tokens\":$2}"; }
tool_calls() {
    said='"name": "weather", "arguments": "{\"city\":\"Bern\"}"}}]'
    ask_caller "$asked" 80 && has '"content": "I look.", "tool_calls": [{"id": "call_' "$said" '"finish_reason": "tool_calls"' &&
        ask_caller "$asked" '80,"stream":true,"logprobs":true,"return_token_ids":true' && has "$said" '<' \
            '"delta": {"tool_calls": [{"index": 0, "id": "call_' '"delta": {}, "logprobs": {"content": [], "refusal": null}, "finish_reason": "tool_calls"' &&
        told=$(sed -n 's/.*, "token_ids": \[\([0-9,]*\)\].*/\1/p' "$work/body" | sed '/^$/d' | paste -sd,) &&
        ask_caller "$asked" '80,"return_token_ids":true' && [ "$(sed -n 's/.*, "token_ids": \[\([0-9,]*\)\].*/\1/p' "$work/body")" = "$told" ] &&
        ask_caller "$asked" '80,"stream":true' && has "$said" && lacks '<' &&
        ask_caller "$asked" 50 && has '"content": "I look.\n<tool_call>' '"finish_reason": "length"' && lacks '"tool_calls"' &&
        ask_caller "$asked" '50,"stream":true' && has '<tool_call>' '"finish_reason": "length"' && lacks '"tool_calls"' &&
        ask_caller "$asked" '9,"tool_choice":"none"' && has '"prompt_tokens": 7' && lacks '"tool_calls"'
}
# The prompt with the call and its result is what the template makes of them.
tool_results() {
    arguments='{\"city\": \"Bern\"}'
    made='{"id":"x","type":"function","function":{"name":"weather","arguments":"'$(printf %s "$arguments" | sed 's/"/\\"/g')'"}}'
    result='{"role":"tool","tool_call_id":"x","content":"rain"}'
    answered() { echo "$asked,{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[$1]},$result"; }
    ask_caller "$(answered "$made")" '1,"return_token_ids":true' || return 1
    found=$(ids prompt_token_ids)
    echo "{\"messages\":[$(answered "$call")],\"tools\":$tools,\"add_generation_prompt\":true}" |
        ./kedge chat-template --model "$work/tiny" >"$work/line"
    expected=$(./kedge tokenize -m "$work/tiny" <"$work/line" | sed 's/.*\[\(.*\)\].*/\1/; s/ //g')
    [ -n "$found" ] && [ "$found" = "$expected" ]
}
tools_need_a_template() {
    ask 400 /v1/chat/completions -d "{\"messages\":[$asked],\"tools\":$tools}" && has '"param": "tools"' 'does not support tools' &&
        ask 400 /v1/chat/completions -d "{\"messages\":[$asked],\"tools\":$tools,\"tool_choice\":\"required\"}" &&
        has '"param": "tool_choice"' 'unsupported_parameter'
}

# ---- clients ----
# clients FILE: bodies that released clients sent; parts of the answers that they read.
clients() {
    tab=$(printf '\t')
    while IFS="$tab" read -r who path status parts body; do
        printf %s "$body" >"$work/asked"
        ask "$status" "$path" -H 'X-Session-ID: a' --data-binary "@$work/asked" || { echo "$who: $body"; return 1; }
        while [ -n "$parts" ]; do
            has "${parts%%|*}" || { echo "$who: $body"; return 1; }
            case $parts in *'|'*) parts=${parts#*|} ;; *) parts= ;; esac
        done
    done <"tests/data/api/$1"
}
# The prompt's ids stand in the first piece of each choice and beside it, those of the answer in all pieces.
chat_ids() {
    with='"messages":[{"role":"user","content":"Hi"}],"max_tokens":9,"seed":3,"ignore_eos":true,"return_token_ids":true'
    ask 200 /v1/chat/completions -d "{$with}" || return 1
    whole=$(sed -n 's/.*"token_ids": \[\([0-9,]*\)\].*/\1/p' "$work/body") prompt=$(ids prompt_token_ids)
    [ "$(grep -o "\"prompt_token_ids\": \[$prompt\]" "$work/body" | wc -l)" -eq 2 ] && [ -n "$whole" ] || return 1
    ask 200 /v1/chat/completions -d "{$with,\"stream\":true}" &&
        [ "$(grep -o "\"prompt_token_ids\": \[$prompt\]" "$work/body" | wc -l)" -eq 2 ] &&
        [ "$(sed -n 's/.*, "token_ids": \[\([0-9,]*\)\].*/\1/p' "$work/body" | sed '/^$/d' | paste -sd,)" = "$whole" ]
}

# ---- kedge chat ----
# A word behind / is for kedge: one that it does not know is said, and nothing is answered. What follows /quit is not read.
chat_takes_commands() {
    printf '/hlep\n/help\n/quit\nHello\n' | ./kedge chat -m "$work/tiny" -t 0 --max-tokens 8 >"$work/said" 2>"$work/body" || return 1
    [ ! -s "$work/said" ] && grep -q "found '/hlep'" "$work/body" && grep -q '^/quit  *leave, as' "$work/body" || return 1
    printf '/etc/x\n' | ./kedge chat -m "$work/tiny" -t 0 --max-tokens 8 --seed 1 >"$work/said" 2>"$work/body" || return 1
    printf '//etc/x\n' | ./kedge chat -m "$work/tiny" -t 0 --max-tokens 8 --seed 1 2>/dev/null | cmp - "$work/said"
}
# The second answer is the one to the tokens of the first, end to end, with the new message behind them.
chat_appends_tokens() {
    printf 'Hello\nAnd now\n' | ./kedge chat -m "$work/tiny" -t 0 --max-tokens 8 >"$work/said" 2>"$work/body" || return 1
    lacks rewrites || return 1
    ask 200 /v1/chat/completions -d '{"messages":[{"role":"user","content":"Hello"}],"max_tokens":8,"temperature":0,
        "return_token_ids":true}' || return 1
    { sed -n 's/.*"content": "\(.*\)", "refusal".*/\1/p' "$work/body"; echo; } >"$work/expected"
    prompt=$(ids prompt_token_ids) first=$(ids token_ids)
    more=$(printf '%s\n' '{"text": "<|im_end|>\n<|im_start|>user\nAnd now<|im_end|>\n<|im_start|>assistant\n"}' |
        ./kedge tokenize -m "$work/tiny" | sed 's/.*\[\(.*\)\].*/\1/')
    ask 200 /v1/completions -d "{\"prompt\":[$prompt,$first,$more],\"max_tokens\":8,\"temperature\":0}" || return 1
    { sed -n 's/.*"text": "\(.*\)", "logprobs".*/\1/p' "$work/body"; } >>"$work/expected"
    # what JSON escapes is left out of both
    printf '%b' "$(sed 's/\\u00[01][0-9a-f]//g; s/\\[bfrt"\\]//g' "$work/expected")\n" >"$work/one"
    tr -d '\000-\011\013-\037"\\' <"$work/said" | diff "$work/one" -
}
chat_needs_a_template() {
    mv "$work/tiny/chat_template.jinja" "$work/template"
    ! echo Hi | ./kedge chat -m "$work/tiny" >"$work/body" 2>&1 && has 'has no chat template' &&
        echo Hi | ./kedge chat -m "$work/tiny" --chat-template "$work/template" --max-tokens 3 >"$work/body" 2>&1
    result=$?
    mv "$work/template" "$work/tiny/chat_template.jinja"
    return $result
}

# What is no UTF-8 never reaches the model; the conversation goes on without it.
chat_refuses_what_is_no_text() {
    printf 'A\377\nHello\n' | ./kedge chat -m "$work/tiny" -t 0 --max-tokens 8 >"$work/said" 2>"$work/body" || return 1
    has 'user: text is not UTF-8: invalid sequence at byte offset 1 (0xff)' || return 1
    sed -i 1d "$work/said"
    printf 'Hello\n' | ./kedge chat -m "$work/tiny" -t 0 --max-tokens 8 2>/dev/null | cmp - "$work/said" || return 1
    ! printf 'Hello\n' | ./kedge chat -m "$work/tiny" -s "$(printf 'A\377')" >/dev/null 2>"$work/body" &&
        has 'system: text is not UTF-8'
}

# ---- errors ----
errors() {
    c=/v1/completions
    error 400 $c -d '{"prompt":' && error 400 $c -d '[]' && error 400 $c -d '' &&
        error 400 $c -d '{"prompt":"x","temperature":"hot"}' && has '"param": "temperature"' 'found string' &&
        error 400 $c -d '{"max_tokens":3}' && has '"param": "prompt"' &&
        error 404 $c -d '{"model":"gpt","prompt":"x"}' && has 'model_not_found' &&
        error 400 $c -d '{"prompt":"x","colour":1}' && has 'Unrecognized request argument supplied: colour' unknown_parameter &&
        error 400 $c -d '{"prompt":"x","guided_regex":"a"}' && has '"param": "guided_regex"' unsupported 'constrained answers are not' &&
        error 400 $c -d '{"prompt":"x","logit_bias":{"600":1}}' && has '"param": "logit_bias"' 'from 0 to 599' &&
        error 400 $c -d '{"prompt":"x","max_tokens":600}' && has 'context_length_exceeded' &&
        error 400 $c -d '{"prompt":[600]}' && has 'from 0 to 599' &&
        printf '{"prompt":"\377"}' >"$work/bad" && error 400 $c --data-binary "@$work/bad" &&
        error 400 /v1/chat/completions -d '{"messages":[{"role":"user"}]}' && has 'message 0' &&
        error 400 /v1/chat/completions -d '{"messages":[{"role":"user","content":[{"type":"image_url"}]}]}' &&
        error 404 /v1/nothing && error 405 $c && error 404 /v1/embeddings -d '{}' &&
        head -c 5000000 /dev/zero >"$work/bad" && error 413 $c --data-binary "@$work/bad" &&
        error 431 $c -H "X: $(head -c 50000 /dev/zero | tr '\0' a)" -d '{}' && health
}

# ---- clients that leave, limits ----
metric() { ask 200 /metrics && value=$(sed -n "s/^kedge_$1 //p" "$work/body"); }
until_metric() {
    for _ in $(seq 100); do
        metric "$1" && [ "$value" = "$2" ] && return 0
        sleep 0.05
    done
    echo "$1 is $value, expected $2"
    return 1
}
long='{"prompt":"x","max_tokens":500,"ignore_eos":true,"n":64,"stream":true}'
# of a stream, and of a whole answer: neither is an error of the server
a_client_that_leaves() {
    metric http_errors_5xx_total && before=$value
    curl -sS -m 0.2 -N "$at/v1/completions" -d "$long" >/dev/null 2>&1
    until_metric clients_left_total 1 && until_metric sequences_running 0 && until_metric requests_open 0 || return 1
    curl -sS -m 0.2 "$at/v1/completions" -d '{"prompt":"x","max_tokens":500,"ignore_eos":true,"n":64}' >/dev/null 2>&1
    until_metric clients_left_total 2 && until_metric sequences_running 0 && until_metric requests_open 0 &&
        until_metric http_errors_5xx_total "$before"
}
strangers_names() {
    ask 200 /health -H 'Host: localhost:1' -H 'Origin: http://[::1]' && error 403 /v1/models -H 'Host: example.com' &&
        error 403 /health -H 'Origin: https://example.com' && has 'allow-host'
}
# The weights are packed while the file is read: what happens to it afterwards does not reach the server.
a_checkpoint_that_is_cut_off() {
    ./kedge new --hidden 64 --layers 2 --heads 2 --max-positions 64 --dtype fp32 --train-tokenizer "$work/text" --vocab 600 \
        "$work/whole" >/dev/null 2>&1 && start --model "$work/whole" --dtype fp32 || return 1
    words() { ask 200 /v1/completions -d '{"prompt":"x","max_tokens":8,"temperature":0}' && field text; }
    words >"$work/before" && truncate -s 5000 "$work/whole/model.safetensors" && words >"$work/after"
    result=$?
    kill "$pid" && wait "$pid"
    pid=
    [ "$result" -eq 0 ] && cmp "$work/before" "$work/after"
}
six() { case $at in 'http://[::1]:'*) ask 200 /health -g ;; *) echo "the address is $at"; return 1 ;; esac; }
metrics() {
    ask 200 /metrics && has 'kedge_requests_total{endpoint="chat",status="200"}' 'kedge_first_token_seconds_bucket{le="+Inf"}' \
        'kedge_request_seconds_count' 'kedge_sequences_running 0' 'kedge_sequences_waiting 0' 'status="400"' \
        '# TYPE kedge_completion_tokens_total counter'
}
key() {
    error 401 /v1/models && has 'invalid_api_key' && error 401 /v1/models -H 'Authorization: Bearer wrong' &&
        ask 200 /v1/models -H 'Authorization: Bearer sesame' && health
}
queue_limit() {
    curl -sS -m 5 -N "$at/v1/completions" -H 'Authorization: Bearer sesame' -d "$long" >/dev/null 2>&1 &
    reader=$!
    for _ in $(seq 100); do
        ask 200 /metrics -H 'Authorization: Bearer sesame' && has 'kedge_requests_open 1' >/dev/null && break
        sleep 0.02
    done
    error 429 /v1/completions -H 'Authorization: Bearer sesame' -d '{"prompt":"x"}'
    result=$?
    kill "$reader" 2>/dev/null
    wait "$reader" 2>/dev/null
    return $result
}
drain() {
    curl -sS -m 10 "$at/v1/completions" -d '{"prompt":"x","max_tokens":500,"ignore_eos":true,"n":128}' >"$work/last" &
    reader=$!
    until_metric requests_open 1 || return 1
    kill -TERM "$pid"
    for _ in $(seq 40); do grep -q '^stopping' "$work/log" && break; sleep 0.02; done
    error 503 /v1/completions -d '{"prompt":"x"}' && error 503 /health
    result=$?
    wait "$pid"
    [ $? -eq 0 ] || result=1
    pid=
    wait "$reader"
    grep -q '"completion_tokens": 64000' "$work/last" && return $result
}
refuses() { ! ./kedge serve "$@" >"$work/body" 2>&1; }
flags() {
    printf 'two words' >"$work/key"
    refuses --model "$work/tiny" --api-key-file "$work/key" && has 'one key' &&
        refuses --model "$work/tiny" --api-key-file "$work/none" && refuses && refuses --model "$work/none" &&
        refuses --model "$work/tiny" --port "${at##*:}" && has 'in use' &&
        printf 'ann tml-a1b2c3d4e5f6a7b8\n' >"$work/keys" && chmod 640 "$work/keys" &&
        refuses --model "$work/tiny" --train "$work/saved" --api-keys "$work/keys" && has 'chmod 600' && lacks a1b2c3d4e5f6a7b8 &&
        printf 'ann short\n' >"$work/keys" && chmod 600 "$work/keys" &&
        refuses --model "$work/tiny" --train "$work/saved" --api-keys "$work/keys" && has 'line 1: expected NAME KEY' && lacks short
}
# Two users of `--train`: the key says who asks, and is in no log.
users() {
    ann='X-API-Key: tml-a1b2c3d4e5f6a7b8' bob='X-API-Key: tml-b1b2c3d4e5f6a7b8' api=/api/v1
    ask 401 $api/get_server_capabilities && ask 401 $api/get_server_capabilities -H "${ann%8}" && ask 200 $api/healthz &&
        ask 200 $api/create_session -H "$ann" -d '{"sdk_version":"0.38.0"}' || return 1
    session=$(sed -n 's/.*"session_id": "\([0-9a-f]*\)".*/\1/p' "$work/body")
    ask 200 $api/session_heartbeat -H "$ann" -d '{"session_id":"'"$session"'"}' &&
        ask 404 $api/session_heartbeat -H "$bob" -d '{"session_id":"'"$session"'"}' &&
        [ -d "$work/saved/users/ann" ] && [ -d "$work/saved/users/bob" ] && grep -q '2 users, each with a key' "$work/log" &&
        ! grep -q 1b2c3d4e5f6a7b8 "$work/log"
}

start || { cat "$work/log"; failed "the server starts" "no line with its address"; exit 1; }
pass "health" health
pass "the model is listed" models
pass "a completion with log-probs" completion
pass "a chat answer with log-probs" chat
pass "prompts as text, ids and lists of them" prompts_of_all_kinds
pass "text to ids and back" tokens
pass "an answer has the bits of kedge generate, alone or in company, streamed or whole" same_bits
pass "an echoed prompt has the log-probs of kedge score" echo_scores
pass "penalties and biases change what is drawn and no log-prob" adjusted
pass "an answer without a seed tells the one it was drawn with" a_seed_is_told
pass "a chat answer is streamed, with usage" stream_chat
pass "a chat tells its ids, whole and streamed" chat_ids
pass "the piece that ends an answer has no content" the_end_is_empty
pass "special tokens are text where that is asked for" special_tokens
pass "stop strings never leak into a stream" stop_strings_never_leak
pass "kedge chat appends tokens to tokens" chat_appends_tokens
pass "kedge chat takes commands, and says which it does not know" chat_takes_commands
pass "kedge chat says that a template lacks" chat_needs_a_template
pass "kedge chat refuses what is no UTF-8" chat_refuses_what_is_no_text
pass "tools are refused where the template has no place for them" tools_need_a_template
pass "wrong requests get errors in OpenAI's shape, and the server lives on" errors
pass "strangers' names are refused" strangers_names
pass "a client that leaves frees its slots" a_client_that_leaves
pass "metrics" metrics
pass "flags that cannot work are refused" flags
pass "SIGTERM ends it with status 0" stop
if [ -e /proc/net/if_inet6 ] && grep -q '^0*1 ' /proc/net/if_inet6; then
    start --host ::1 --allow-host example.com || failed "the server starts on ::1" "$(cat "$work/log")"
    pass "an address of IPv6 is told as clients need it" six
    pass "other names can be allowed" ask 200 /health -g -H 'Host: example.com:80'
    stop
else
    skipped "an address of IPv6 is told as clients need it" "this machine has no ::1"
fi
pass "a checkpoint that is cut off under the server changes no answer" a_checkpoint_that_is_cut_off
echo sesame >"$work/key"
start --api-key-file "$work/key" --max-requests 1 || failed "the server starts again" "$(cat "$work/log")"
pass "a key is asked for" key
pass "too many open requests are refused with 429" queue_limit
stop
printf 'ann tml-a1b2c3d4e5f6a7b8\nbob tml-b1b2c3d4e5f6a7b8\n' >"$work/keys"
chmod 600 "$work/keys"
start --train "$work/saved" --api-keys "$work/keys" || failed "the server starts again" "$(cat "$work/log")"
pass "users of --train have keys of their own" users
stop
start --max-batch 4 || failed "the server starts again" "$(cat "$work/log")"
pass "SIGTERM drains: open answers are finished, new ones refused" drain
if learn_a_call >"$work/body" 2>&1 && start --max-len 1024; then
    pass "tool calls are read out of answers, whole and streamed" tool_calls
    pass "calls and their results reach the template" tool_results
    pass "released clients get what they read" clients clients.tsv
    stop
    start --default-max-tokens 64 || failed "the server starts again" "$(cat "$work/log")"
    pass "an agent in a terminal gets what it reads" clients terminus.tsv
    stop
else
    failed "a model learns a tool call" "$(cat "$work/body" "$work/log")"
fi
exit $((failures > 0))
