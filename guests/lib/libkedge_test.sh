#!/bin/sh
# libkedge as a user meets it: installed under a prefix of its own, found through pkg-config, included from C and C++,
# and nothing but kedge_* visible. Prints what cmocka would, for tools/run-tests. Run from the top of the tree.
set -u
build=$(cd "$(dirname "$0")/../../.." && pwd)
cc=${CC:-cc}
# a folder built under sanitizers is called after them
variant=${build##*/}
case $variant in *-*) cc="$cc -fsanitize=$(echo "${variant#*-}" | tr - ,)" ;; esac
. tests/harness.sh
prefix=$work/prefix

only_kedge_is_exported() {
    nm -D --defined-only "$build/libkedge.so.0" | awk '{print $3}' | grep -v '^kedge_\|^KEDGE_0$' && return 1
    # the OpenMP compiler names a lock that all programs of a process share
    nm -g --defined-only "$build/libkedge.a" | awk 'NF == 3 {print $3}' | grep -v '^kedge_\|^.gomp_critical' && return 1
    # every function that the header declares, and no other
    nm -D --defined-only "$build/libkedge.so.0" | awk '$2 == "T" {sub(/@.*/, "", $3); print $3}' | sort >"$work/has"
    grep -A1 '^KEDGE_API' guests/lib/kedge.h | grep -o 'kedge_[a-z0-9_]*(' | tr -d '(' | sort -u >"$work/says"
    diff "$work/says" "$work/has"
}
installs() {
    make --no-print-directory -s install-lib PREFIX="$prefix" B="$build" &&
        [ -e "$prefix/lib/libkedge.so.0" ] && [ -e "$prefix/share/man/man3/libkedge.3" ] &&
        [ -e "$prefix/share/kedge/python/kedge.py" ]
}
header_alone() {
    printf '#include "kedge.h"\nint main(void) { return 0; }\n' >"$work/h.c"
    $cc -std=c99 -pedantic -Wall -Wextra -Werror -Iguests/lib -fsyntax-only "$work/h.c"
}
header_in_cxx() {
    printf '#include "kedge.h"\nint main() { struct kedge_head h = {sizeof h}; return h.size == 0; }\n' >"$work/h.cc"
    "$cxx" -std=c++11 -pedantic -Wall -Werror -Iguests/lib -fsyntax-only "$work/h.cc"
}
flags() { PKG_CONFIG_PATH=$prefix/lib/pkgconfig pkg-config "$@" kedge; }
# shellcheck disable=SC2046
example() {
    [ "$(wc -l <examples/policy_loss.c)" -lt 80 ] || return 1
    $cc -Wall -Wextra -Werror examples/policy_loss.c $(flags --cflags "$@" --libs) -o "$work/example" || return 1
    LD_LIBRARY_PATH=$prefix/lib "$work/example" >"$work/said" || return 1
    cat "$work/said"
    # on-policy with zero-mean advantages the loss starts at 0; then it falls, and the KL to where it was rises
    [ "$(wc -l <"$work/said")" -eq 3 ] &&
        awk '{gsub(/,/, "")} NR == 1 {exit !($4 < 1e-5 && $4 > -1e-5 && $6 == 0)}' "$work/said" &&
        awk '{gsub(/,/, "")} NR > 1 && !($4 < last && $6 > 0) {exit 1} {last = $4}' "$work/said"
}
static_example() {
    sed -i 's/-lkedge/-l:libkedge.a/' "$prefix/lib/pkgconfig/kedge.pc"
    example --static
}

pass only_kedge_is_exported only_kedge_is_exported
pass the_header_stands_alone_in_c99 header_alone
cxx=$(command -v g++ || command -v clang++ || true)
if [ -n "$cxx" ]; then
    pass the_header_stands_in_cxx header_in_cxx
else
    skipped the_header_stands_in_cxx "no C++ compiler here"
fi
pass it_installs_under_a_prefix installs
if command -v pkg-config >/dev/null 2>&1; then
    pass the_example_compiles_and_learns example
    pass the_example_links_the_static_library static_example
else
    skipped the_example_compiles_and_learns "no pkg-config here"
fi
exit "$failures"
