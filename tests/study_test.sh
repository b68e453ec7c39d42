#!/bin/sh
# The study repeats itself: two short rows, of a gradient probe and of a run that is trained and measured, come out as
# docs/study has them, to the last digit, also after a stop; a digit that was spoilt is seen; the page's numbers are those of the rows.
set -eu
. tests/harness.sh
export STUDY_OUT="$work/runs" STUDY_JOBS=1

# stopped while it makes where its runs begin: what follows takes that up
stops() {
    tools/study --full --part check >/dev/null 2>&1 &
    child=$!
    until [ -L "$work/runs/digits/lock" ]; do sleep 0.05; done
    kill -s TERM "$child"
    code=0
    wait "$child" || code=$?
    [ "$code" -eq 130 ] && flock -n "$work/runs/working" true # and nobody is left who works
}
repeats() { tools/study --full --part check | grep -q '^study: 2 rows as in docs/study to the last digit, 0 differ, 0 are not there$'; }
# both rows are there now: only the comparison is done again
spoilt() {
    sed -i 's/"kl": 0\.01/"kl": 0.02/' "$work/runs/results-check.jsonl"
    ! tools/study --full --part check >"$work/said" 2>&1 && grep -q 'check/grpo/s101 differs' "$work/said" &&
        grep -q '1 rows as in .*, 1 differ' "$work/said"
}
# two at once would make the same rows
alone() {
    ! flock "$work/runs/working" tools/study --full --part check 2>"$work/said" && grep -q 'another tools/study works off its rows' "$work/said"
}
# a program that fails at all makes no row, and says so by its status
fails() {
    mkdir "$work/runs2" && cp -r "$work/runs/digits" "$work/runs2/digits"
    ! STUDY_OUT="$work/runs2" KEDGE=false_kedge tools/study --full --part check >"$work/said" 2>&1 &&
        ! STUDY_OUT="$work/runs2" KEDGE="$work/false" tools/study --full --part check >"$work/said" 2>&1 &&
        grep -q 'check/grpo/s101 failed' "$work/said" && grep -q 'not all rows were made' "$work/said"
}
# rows that the grid has not, as while a rate is not tuned, are kept
kept_rows() {
    mkdir "$work/tree" && cp -r tools "$work/tree/tools" && mkdir -p "$work/tree/docs" && cp -r docs/study "$work/tree/docs/study" || return 1
    echo '{"name": "C/gone/s101", "part": "C"}' >>"$work/tree/docs/study/results-check.jsonl"
    cp "$work/tree/docs/study/results-check.jsonl" "$work/before"
    STUDY_OUT="$work/runs3" KEDGE="$PWD/kedge" "$work/tree/tools/study" --missing --full --part check &&
        cmp "$work/before" "$work/tree/docs/study/results-check.jsonl" && echo '}' >"$work/tree/tools/study-grid" &&
        ! STUDY_OUT="$work/runs3" KEDGE="$PWD/kedge" "$work/tree/tools/study" --missing --full --part check &&
        cmp "$work/before" "$work/tree/docs/study/results-check.jsonl"
}
# the program takes what rows and their starts ask for: it checks configurations alone here, so that none of them is made
taken() { # NAME: to where its runs would be
    code=0
    STUDY_OUT="$work/dry" KEDGE="$work/dry/kedge" tools/study --row "$1" >"$work/said" 2>&1 || code=$?
    [ "$code" -eq 130 ] || { cat "$work/said" "$work"/dry/*/warm.log; return 1; }
}
configurations() {
    mkdir "$work/dry" && cat >"$work/dry/kedge" <<'EOF' && chmod +x "$work/dry/kedge"
#!/bin/sh
case $1 in
sft | train | distill) exec ./kedge "$@" --dry-run --config-only ;;
new) for dir; do :; done; cp -r tests/data/verl_digit_llama "$dir" ;;
wiki) mkdir -p "$3/world" && touch "$3/world/corpus.jsonl" ;;
esac
EOF
    for row in passages:B/distill/k4 arithmetic:E/arithmetic/gspo countdown:D/bf16/dual-clip,lr3 countdown:G/lag15/trm,lr3 \
        search:C/search/ema20,beta0.1; do
        task=${row%%:*}
        taken "${row#*:}/s101" || return 1
        sed -n "s/^$task //p" docs/study/starts >"$work/dry/$task/start"
        for step in step-000000 sft-000010 sft-000080; do
            mkdir -p "$work/dry/$task/warm/checkpoints/$step" && cp -r tests/data/verl_digit_llama "$work/dry/$task/warm/checkpoints/$step/model"
        done
        taken "${row#*:}/s101" || return 1
    done
    taken B/drift/topk-forward,k64/ema/published/s101 && taken F/search/ema-pg/s101
}
# the chat model is not made but fetched: where it is not, that is said; where it is, each preset's words are taken
chat() {
    rows="cd $work/tree && STUDY_OUT=$work/dry KEDGE=$work/dry/kedge tools/study --row"
    cp docs/study/* "$work/tree/docs/study/" && cp -r recipes "$work/tree/" && cp tools/study-grid "$work/tree/tools/" &&
        mkdir -p "$work/tree/runs/real-demo" && cp kedge "$work/tree/kedge" || return 1
    ! sh -c "$rows H/smollm2/grpo/s101" 2>"$work/said" && grep -q 'expected the model; ./run real-demo fetches it' "$work/said" || return 1
    cp tests/data/gguf/vocab.gguf "$work/tree/runs/real-demo/SmolLM2-135M-Instruct.Q4_1.gguf"
    sed -n 's/^smollm2 //p' docs/study/starts >"$work/dry/smollm2/start"
    for preset in grpo ema-pg ema-pg-published dppo-topk-kl rpg-urkl; do
        code=0
        sh -c "$rows H/smollm2/$preset/s103" >"$work/said" 2>&1 || code=$?
        [ "$code" -eq 130 ] || { cat "$work/said" "$work"/dry/H/smollm2/*.log; return 1; }
    done
}
unknown_row() { ! tools/study --row A/nothing/s1 2>"$work/said" && grep -q "found 'A/nothing/s1'" "$work/said"; }
# names are of one row each, and reported seeds are not those of tuning
grid() {
    tools/study --full --list >"$work/names"
    [ "$(sort "$work/names" | uniq -d | wc -l)" -eq 0 ] && ! grep -v '^T/' "$work/names" | grep -qv '/s1[01][0-9]$' &&
        ! grep '^T/' "$work/names" | grep -qv '/s[1-9]$'
}
# what the page asks for can come to be there: else a slip of the pen reads as "not yet run" for ever
asked_cells() {
    awk -f tools/study-grid -v tuned="B.distill=1 C.arithmetic=1 C.countdown=1 C.search=1 D.countdown=1" |
        sed 's|^[A-Za-z]*/||; s|/s[0-9]* .*||' | sort -u >"$work/cells"
    sed -n 's/^<!-- .*kedge table //p' docs/study.md | grep -oE -- '(-d|--match|--start) [^ ]*' | cut -d ' ' -f 2 | tr ':' '\n' |
        sed 's/\*$//' | sort -u >"$work/asked"
    [ "$(wc -l <"$work/asked")" -gt 100 ] &&
        awk 'FNR == NR { cell[$0]; next } { for (c in cell) if (index(c, $0) == 1) next; print; bad = 1 } END { exit bad }' \
            "$work/cells" "$work/asked"
}
page() { tools/study-tables --check; }
# a page of one table: written by the tool, then changed in a digit
other_page() {
    printf '<!-- kedge table -m kl --match grpo docs/study/results-check.jsonl -->\n<!-- end -->\n' >"$work/page"
    STUDY_PAGE="$work/page" tools/study-tables && grep -q '^| `grpo` | 1 | 0\.0' "$work/page" &&
        STUDY_PAGE="$work/page" tools/study-tables --check && sed -i 's/| 1 | 0\.0/| 1 | 0.9/' "$work/page" &&
        ! STUDY_PAGE="$work/page" tools/study-tables --check 2>"$work/said" && grep -q 'is not what the rows say' "$work/said"
}
# the same of a plot
other_plot() {
    mkdir "$work/plot" && printf '<!-- p.svg: kedge table --svg -m kl --over entropy --match grpo docs/study/results-check.jsonl -->\n<!-- end -->\n' >"$work/plot.md"
    STUDY_PAGE="$work/plot.md" tools/study-tables && grep -qF '![p.svg](study/p.svg)' "$work/plot.md" && grep -q '^<svg ' "$work/plot/p.svg" &&
        STUDY_PAGE="$work/plot.md" tools/study-tables --check && sed -i 's/M/L/' "$work/plot/p.svg" &&
        ! STUDY_PAGE="$work/plot.md" tools/study-tables --check 2>"$work/said" && grep -q 'plot/p.svg is not what the rows say' "$work/said"
}

pass "a signal stops it" stops
pass "two rows come out to the last digit" repeats
pass "one at a time in a folder" alone
pass "a digit that differs is seen" spoilt
printf '#!/bin/sh\nexit 1\n' >"$work/false" && chmod +x "$work/false"
pass "rows that fail are a failure" fails
pass "kept rows that the grid has not stay" kept_rows
pass "what rows and starts ask for is taken" configurations
pass "a chat model is fetched, and its rows' words are taken" chat
pass "a row that there is not is refused" unknown_row
pass "names are of one row, seeds of tuning and report apart" grid
pass "what the page asks for is in the grid" asked_cells
pass "the page says what the rows say" page
pass "a page that says something else is seen" other_page
pass "a plot that shows something else is seen" other_plot
exit $((failures > 0))
