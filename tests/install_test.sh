#!/bin/sh
# make install: the program with its recipes, suites and completion, and what the completion of each shell offers.
# `command -v` finds the shells; one that is missing is a skip.
. tests/harness.sh

build=$(cd "$(dirname "$0")/../.." && pwd)
build=${build#"$PWD"/} # as it was built: what is made under another name is made anew the next time
make --no-print-directory install DESTDIR="$work" PREFIX=/usr B="$build" >"$work/log" 2>&1 || { told=$work/log; failed "make install" ""; exit 1; }
share=$work/usr/share

same_files() {
    for file in $(git ls-files recipes suites 2>/dev/null || find recipes suites -type f); do
        cmp "$file" "$share/kedge/$file" || return 1
    done
    [ "$(find "$share/kedge/recipes" -name '*.yaml' | wc -l)" -gt 10 ]
}
pass "recipes and suites are installed" same_files

runs_from_there() {
    "$work/usr/bin/kedge" train "$share/kedge/recipes/digits.yaml" model.path=tests/data/verl_digit_llama \
        data.train=tests/data/verl_digit_llama/train.jsonl data.val=tests/data/verl_digit_llama/test.jsonl \
        sft.data=tests/data/verl_digit_llama/train.jsonl run.dir="$work/run" --dry-run
}
pass "an installed recipe runs" runs_from_there

# outside the tree, by the name that it has there
found_by_name() {
    (cd "$work" && usr/bin/kedge train recipes/svamp.yaml model.path="$build/../../tests/data/verl_digit_llama" \
        run.dir=run --dry-run 2>said; grep -q 'share/kedge/recipes/svamp.yaml' said &&
        usr/bin/kedge eval suites/ema-pg-math.yaml --dry-run --data-dir none >/dev/null 2>said &&
        grep -q 'share/kedge/suites/ema-pg-math.yaml' said)
}
pass "recipes and suites are found beside the program" found_by_name

# help of a command is the same by either word
helps() { "$work/usr/bin/kedge" help train >"$work/help" && "$work/usr/bin/kedge" train --help | cmp - "$work/help"; }
pass "kedge help COMMAND" helps

# offers WORD EXPECTED: bash completes WORD behind `kedge train`
offers() {
    bash -c '. "$1"; COMP_LINE="kedge train $2"; COMP_POINT=${#COMP_LINE}; COMP_WORDS=(kedge train "$2"); COMP_CWORD=2; _kedge
        printf "%s\n" "${COMPREPLY[@]}"' bash "$share/bash-completion/completions/kedge" "$1" | grep -qx -- "$2"
}
in_bash() {
    offers kl.est kl.estimator= && offers --dry --dry-run && offers optim.l optim.lr= && offers pres preset= || return 1
    offers log.report=t true && offers task.metric= subem && ! offers kl. optim.lr=
}
# zsh reads the script of bash, which its own file names; what it offers needs somebody who types
zsh_reads() {
    zsh -n "$share/bash-completion/completions/kedge" && zsh -n "$share/zsh/site-functions/_kedge" &&
        zsh -fc '. $1; whence -f _kedge' zsh "$share/zsh/site-functions/_kedge" 2>/dev/null | grep -q COMPREPLY
}
# in SHELL NAME COMMAND
in_shell() {
    if command -v "$1" >/dev/null; then pass "$2" "$3"; else skipped "$2" "no $1"; fi
}
in_shell bash "bash completes recipe keys and their choices" in_bash
in_shell zsh "zsh reads the same" zsh_reads
exit "$failures"
