#!/bin/sh
# kedge demo: where it works, what it uses again, what it refuses. The whole demo runs in tools/fresh-machine; here only the model
# before RL, after two steps of SFT.
. tests/harness.sh

program=$PWD/kedge
warm=warm/checkpoints/step-000000/model
# demo ARGUMENTS...: outside the tree, with no more of the surroundings than a new machine has
demo() { (cd "$work" && env -i PATH=/usr/bin:/bin "$program" demo "$@" 2>said); }
weights() { sha256sum <"$work/$1/$warm/model.safetensors"; }
# refuses WORDS ARGUMENTS...
refuses() {
    expected=$1
    shift
    ! demo "$@" >"$work/printed" && [ ! -s "$work/printed" ] && told "$expected"
}
told() { grep -qF -- "$1" "$work/said" || { cat "$work/said" && false; }; }

prints_its_folder() { [ "$(demo --warm 2 sft.batch=8)" = "runs/demo/$warm" ] && [ -f "$work/runs/demo/$warm/model.safetensors" ]; }
pass "--warm makes a model under runs/demo and prints its folder" prints_its_folder

used_again() {
    before=$(weights runs/demo) && [ "$(demo --warm 5 --out runs/demo)" = "runs/demo/$warm" ] || return 1
    told "using those in runs/demo/model" && told "using runs/demo/warm" && [ "$(weights runs/demo)" = "$before" ]
}
pass "what is there is used again" used_again

taken_up() {
    before=$(weights runs/demo) && rm -r "$work/runs/demo/warm" && demo --warm 2 sft.batch=8 && told "using those in" &&
        [ "$(weights runs/demo)" = "$before" ]
}
pass "a demo that ended early is taken up, with the same bits" taken_up

keys_reach_sft() {
    cp -r "$work/runs/demo" "$work/other" && rm -r "$work/other/warm" && demo --warm 2 -o other sft.batch=8 sft.lr=1e-4 &&
        grep -q '^ *lr: 1e-4' "$work/other/warm/config.yaml" && [ "$(weights other)" != "$(weights runs/demo)" ]
}
pass "keys are those of SFT" keys_reach_sft

odd_names() {
    mkdir -p "$work/a b" && cp -r "$work/runs/demo/model" "$work/a b/" && [ "$(demo --warm 2 --out 'a b' sft.batch=8)" = "a b/$warm" ] &&
        [ "$(weights 'a b')" = "$(weights runs/demo)" ]
}
pass "a folder whose name has a blank" odd_names

found_on_path() {
    mkdir -p "$work/bin" && ln -s "$program" "$work/bin/kedge" && rm -r "$work/runs/demo/warm" &&
        (cd "$work" && env -i PATH="$work/bin:/usr/bin:/bin" kedge demo --warm 2 sft.batch=8 2>said)
}
pass "a program found on PATH by a link" found_on_path

failed_step() { refuses "sft.learning_rate" --warm 2 --out wrong sft.learning_rate=1; }
pass "a step that fails ends it" failed_step

: >"$work/file"
pass "a file in the place of the folder" refuses "file: expected a writable folder" --out file
pass "a folder that cannot be made says how to name another" refuses "--out DIR names another" --out /proc/kedge
pass "a folder below a file" refuses "expected a writable folder" --quick --out file/below
pass "keys without --warm" refuses "expected no arguments without --warm, found 'sft.lr=1'" sft.lr=1
pass "--quick with --warm" refuses "--quick: has an effect only without --warm" --quick --warm 2
pass "no steps" refuses "--warm: expected an integer from 1" --warm 0
# shellcheck disable=SC2046
pass "too many keys" refuses "expected at most 32" --warm 2 $(seq 1 33 | sed 's/.*/sft.steps=&/')
exit $((failures > 0))
