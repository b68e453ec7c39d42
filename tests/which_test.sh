#!/bin/sh
# docs/which.md has the numbers that `kedge algorithms check` prints, one line for each row; another number, a line that is
# missing, twice there, of no row or of too few cells is seen, and tools/which mends numbers and leaves what is written by hand.
set -eu
. tests/harness.sh
export WHICH_PAGE="$work/which.md"

current() { WHICH_PAGE=docs/which.md tools/which --check; }
# seen SAYS EDIT: a page so edited by sed is refused with these words
seen() {
    sed "$2" docs/which.md >"$WHICH_PAGE" && ! cmp -s docs/which.md "$WHICH_PAGE" && ! tools/which --check 2>"$work/said" &&
        grep -qF -- "$1" "$work/said" || { cat "$work/said"; return 1; }
}
mends() { # EDIT of generated cells
    sed "$1" docs/which.md >"$WHICH_PAGE" && ! cmp -s docs/which.md "$WHICH_PAGE" && tools/which && cmp docs/which.md "$WHICH_PAGE"
}
keeps() { # EDIT of cells that are written by hand
    sed "$1" docs/which.md >"$WHICH_PAGE" && cp "$WHICH_PAGE" "$work/edited" && tools/which && cmp "$work/edited" "$WHICH_PAGE" &&
        ! cmp -s docs/which.md "$WHICH_PAGE"
}

pass "the page has the numbers of today" current
pass "another number of a KL is seen" seen 'is not what is printed' '/^| `k3` /s/ 5.9 / 5.8 /'
pass "another number of a trust region is seen" seen 'is not what is printed' '/^| `gspo` /s/94/93/'
pass "another bound is seen" seen 'is not what is printed' '/^| `pg-is` /s/the weight/a weight/'
pass "another need is seen" seen 'is not what is printed' '/^| `dppo-topk-tv` /s/the sampler.s top ids/nothing/'
pass "a KL without a line is seen" seen 'expected a line: | `k5`' '/^| `k5` /d'
pass "a trust region without a line is seen" seen 'expected a line: | `vespo`' '/^| `vespo` /d'
pass "a form without a line is seen" seen 'expected a line: | `topk-forward` published' '/^| `topk-forward` published /d'
pass "a name of two tables needs both lines" seen 'expected a line: | `rpg-urkl` | KL' '/^| `rpg-urkl` | KL/d'
pass "a line that is there twice is seen" seen 'or a second line: | `k4`' '/^| `k4` /p'
pass "a line of no row is seen" seen 'no such row' 's/^| `k2` /| `k9` /'
pass "a line without its study is seen" seen 'expected 7 cells, found 6' '/^| `k2` /s/ [|] [^|]* [|]$/ |/'
pass "numbers are mended" mends '/^| `k3` /s/ 5.9 / 5.8 /'
pass "bounds are mended" mends '/^| `pg-is` /s/the weight/a weight/'
pass "what is written by hand stays" keeps '/^| `k2` /s/ [|] [^|]* [|]$/ | nothing |/'
exit $((failures > 0))
