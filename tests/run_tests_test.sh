#!/bin/sh
# tools/run-tests counts what test programs say, in whatever order they end: made-up programs, each with one fate.
set -u
. tests/harness.sh
unset KEDGE_TEST_FRESH KEDGE_TEST_SKIPPED # of whoever runs this test

# program NAME STATUS LINES: says the lines and ends with the status
program() {
    mkdir -p "$work/test/x"
    { echo '#!/bin/sh'; printf "printf '%%s\\\\n' '%s'\n" "$3"; echo "exit $2"; } >"$work/test/x/$1"
    chmod +x "$work/test/x/$1"
}
# closes STATUS LINE PROGRAM...: how a run of these ends, and what its last line is
closes() {
    status=$1 line=$2
    shift 2
    names=""
    for p in "$@"; do names="$names $work/test/x/$p"; done
    tools/run-tests "$work" $names >"$work/said" 2>&1
    [ $? -eq "$status" ] && [ "$(tail -1 "$work/said")" = "$line" ]
}
said() { grep -q "$1" "$work/said"; }
in_the_order_given() {
    KEDGE_TEST_FRESH=1 closes 0 "3 passed, 0 failed, 0 skipped" slow good good2 && [ "$(grep -c '^== ' "$work/test/log")" -eq 3 ] &&
        [ "$(grep -A1 '^== .*/slow$' "$work/test/log" | tail -1)" = "[       OK ] slow" ]
}
again_at_the_end() {
    closes 1 "3 passed, 1 failed, 0 skipped" bad good slow && grep -A3 '^== failed: x/bad$' "$work/said" | grep -q "why it failed"
}
# runs: how often the program `counted` has run
runs() { [ "$(wc -l <"$work/runs")" -eq "$1" ]; }
once_while_nothing_changes() {
    closes 0 "1 passed, 0 failed, 0 skipped" counted && closes 0 "1 passed, 0 failed, 0 skipped" counted && runs 1 &&
        grep -q '^x/counted .* kept$' "$work/said" && grep -q "^1 of 1 programs did not run" "$work/said"
}
fresh_when_asked() { KEDGE_TEST_FRESH=1 closes 0 "1 passed, 0 failed, 0 skipped" counted && runs 2; }
again_as_another_program() {
    echo "# another" >>"$work/test/x/counted"
    closes 0 "1 passed, 0 failed, 0 skipped" counted && runs 3
}
again_where_the_environment_is_another() { KEDGE_TEST_BACKEND=far closes 0 "1 passed, 0 failed, 0 skipped" counted && runs 4; }
again_with_another_kedge() {
    echo "another library" >"$work/libkedge.so"
    closes 0 "1 passed, 0 failed, 0 skipped" counted && runs 5
}
never_what_failed_or_skipped() {
    rm -rf "$work/cache"
    closes 1 "2 passed, 1 failed, 0 skipped" good bad && closes 0 "1 passed, 0 failed, 1 skipped" good skips &&
        [ "$(ls "$work/cache/kedge/tests" | wc -l)" -eq 1 ] && closes 1 "2 passed, 1 failed, 0 skipped" good bad
}
skipped_are_named() {
    KEDGE_TEST_SKIPPED=$work/names closes 0 "1 passed, 0 failed, 1 skipped" good skips && [ "$(cat "$work/names")" = x/skips ]
}
# every name of the list is a program, so none is kept for a slip of the pen
never_kept_are_programs() {
    sed 's/ .*//; /^#/d' tests/never_kept.txt | while read -r name; do
        if [ ! -e "src/$name.c" ] && [ ! -e "$name.c" ] && [ ! -e "$name.sh" ]; then echo "no $name" && return 1; fi
    done
}
one_at_a_time() { JOBS=1 closes 0 "2 passed, 0 failed, 0 skipped" good good2; }

told=$work/said
export XDG_CACHE_HOME=$work/cache # what passes here is kept there
unset KEDGE_TEST_SKIPPED
program good 0 "[       OK ] a"
program good2 0 "[       OK ] b"
program bad 1 "[       OK ] a
why it failed
[  FAILED  ] b
[  FAILED  ] 1 test(s), listed below:
[  FAILED  ] b"
program skips 0 "skip: no such thing here
[  SKIPPED ] c"
program silent 0 "nothing"
program dies 139 "[       OK ] a"
program slow 0 "[       OK ] slow"
sed -i '2i sleep 0.3' "$work/test/x/slow"
program counted 0 "[       OK ] counted"
sed -i "2i echo once >>$work/runs" "$work/test/x/counted"

pass "what passes is counted" closes 0 "2 passed, 0 failed, 0 skipped" good good2
pass "a test that fails is one failure, told once" closes 1 "2 passed, 1 failed, 0 skipped" good bad
pass "what it said is shown" said "why it failed"
pass "and shown once more before the last line" again_at_the_end
pass "a skipped test is counted" closes 0 "1 passed, 0 failed, 1 skipped" good skips
pass "its reason is shown" said "^skip: no such thing here"
pass "a program without a test is a failure" closes 1 "1 passed, 1 failed, 0 skipped" good silent
pass "a program that dies is a failure beside what passed" closes 1 "2 passed, 1 failed, 0 skipped" dies good
pass "a program that is not there is a failure" closes 1 "1 passed, 1 failed, 0 skipped" absent good
pass "nothing but skipped tests is no success" closes 1 "0 passed, 0 failed, 1 skipped" skips
pass "the log is in the order given, whoever ends first" in_the_order_given
pass "JOBS=1 runs one at a time" one_at_a_time
pass "what passed does not run again while nothing changes" once_while_nothing_changes
pass "KEDGE_TEST_FRESH=1 runs it" fresh_when_asked
pass "another program runs" again_as_another_program
pass "another backend runs" again_where_the_environment_is_another
pass "a script runs with another kedge" again_with_another_kedge
pass "what failed or skipped is not kept" never_what_failed_or_skipped
pass "who skipped is named" skipped_are_named
pass "the programs of tests/never_kept.txt exist" never_kept_are_programs
exit $((failures > 0))
