#!/bin/sh
# Ranks that are killed at random moments, by a seed, leave no trace: a few of what tools/ranks-kills does.
set -u
. tests/harness.sh
[ -x ./kedge ] || skip_all "random kills" "./kedge is not built"
command -v bash >/dev/null || skip_all "random kills" "bash is not here"
[ -e "/proc/$$/task/$$/children" ] || skip_all "random kills" "/proc does not list children here"
pass "six kills on 1 to 4 ranks end as one process" tools/ranks-kills --kills 6 --seed 6
exit $((failures > 0))
