#!/bin/sh
# kedge.py against plain torch; skipped where the Python at hand has none. KEDGE_PYTHON names another Python.
# Run from the top of the tree.
set -u
build=$(cd "$(dirname "$0")/../../.." && pwd)
python=${KEDGE_PYTHON:-python3}

skipped() { printf 'skip: kedge.py: %s\n[  SKIPPED ] python\n' "$1"; exit 0; }

case ${build##*/} in *-*) skipped "a library of the sanitizers cannot be loaded into Python" ;; esac
command -v "$python" >/dev/null 2>&1 || skipped "no $python here"
"$python" -c 'import numpy, torch' 2>/dev/null || skipped "$python has no numpy and torch (make test KEDGE_PYTHON=...)"
exec "$python" guests/lib/python_test.py "$build/libkedge.so.0"
