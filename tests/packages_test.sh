#!/bin/sh
# The list of packages by the names that a system has: Debian 12 and Ubuntu 22.04 have Arb, Calcium and Antic apart, later ones
# have them in FLINT 3. Stand-ins for the package manager say which FLINT there is.
set -u
. tests/harness.sh

# system INSTALLED CANDIDATE: what dpkg-query and apt-cache know of libflint-dev
system() {
    mkdir -p "$work/bin"
    printf '#!/bin/sh\ncase $* in *Version*libflint-dev) printf "%%s" "%s" ;; *) echo "install ok installed" ;; esac\n' "$1" >"$work/bin/dpkg-query"
    printf '#!/bin/sh\necho "libflint-dev:"\necho "  Candidate: %s"\n' "$2" >"$work/bin/apt-cache"
    chmod +x "$work/bin/dpkg-query" "$work/bin/apt-cache"
}
names() { PATH="$work/bin:$PATH" tools/packages "$@"; }
apart() { [ "$(names | grep -cE '^lib(flint-arb|calcium|antic)-dev$')" -eq 3 ] && names | grep -qx libflint-dev; }
together() { ! names | grep -qE '^lib(flint-arb|calcium|antic)-dev$' && names | grep -qx libflint-dev; }
unknown_option() { ! tools/packages --all 2>"$work/said" && grep -q "found '--all'" "$work/said"; }
none_missing() { [ -z "$(names --missing)" ]; }
# every row of the table is read, and none has an empty cell
whole_table() {
    n=$(grep -c '^[^#]' tools/packages.txt)
    [ "$(names --upstream | grep -c .)" -eq "$n" ] && [ "$(names | grep -c .)" -eq "$n" ]
}

system "" 2.9.0-5
pass "FLINT 2 to be installed: Arb, Calcium and Antic are packages" apart
pass "every row has a package and an upstream name" whole_table
system "" "3.1.3~dfsg-1"
pass "FLINT 3 to be installed: it holds them" together
system 2.8.4-2 "3.1.3~dfsg-1"
pass "FLINT 2 installed counts before what could be installed" apart
pass "nothing is missing where all is installed" none_missing
pass "an option that is not known is refused" unknown_option
exit $((failures > 0))
