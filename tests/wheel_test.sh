#!/bin/sh
# tools/wheel: what is in the wheels of a small stand-in for build/dist, and what pip makes of them where pip is.
. tests/harness.sh

python=${KEDGE_PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2>/dev/null || skip_all wheel "no Python 3.8 here"
dist=$work/dist
mkdir -p "$dist/kedge/bin" "$dist/kedge/lib/kedge" "$dist/kedge/share/doc/kedge" "$dist/kedge/share/kedge/recipes" "$dist/libkedge"
printf '#!/bin/sh\necho it runs from "${0%%/*}"\n' >"$dist/kedge/bin/kedge"
chmod 755 "$dist/kedge/bin/kedge"
echo library >"$dist/kedge/lib/kedge/libflint.so.17"
echo recipe >"$dist/kedge/share/kedge/recipes/a b.yaml"
echo library >"$dist/libkedge/libkedge.so.0"
for licence in LICENSE SOURCES GPL-3 copyright.flint copyright.gcc-12; do echo $licence >"$dist/kedge/share/doc/kedge/$licence"; done
wheel() { "$python" tools/wheel "$@"; }
at=$work/wheels tag=py3-none-manylinux_2_34_x86_64
version=$(sed -n 's/^VERSION := //p' Makefile)
program=$at/kedge_rl-$version-$tag.whl library=$at/libkedge-$version-$tag.whl

made() { wheel "$at" "$dist" && [ -f "$program" ] && [ -f "$library" ] && [ "$(ls "$at" | wc -l)" -eq 2 ]; }
pass "two wheels, named by version and tag" made
# in_wheel FILE 'EXPRESSION': of names, text(NAME), mode(NAME), info (the folder of metadata)
in_wheel() {
    "$python" - "$1" "$2" <<'END'
import base64, hashlib, sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
names = wheel.namelist()
text = lambda name: wheel.read(name).decode()
mode = lambda name: wheel.getinfo(name).external_attr >> 16 & 0o777
info = next(n for n in names if n.endswith("/WHEEL"))[:-len("/WHEEL")]
data = info.replace("dist-info", "data/data")
digest = lambda name: "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(wheel.read(name)).digest()).decode().rstrip("=")
sys.exit(not eval(sys.argv[2]))
END
}
pass "the program may be run" in_wheel "$program" 'mode(data + "/bin/kedge") == 0o755'
pass "other files may not" in_wheel "$program" 'mode(data + "/lib/kedge/libflint.so.17") == 0o644'
pass "a name with a blank" in_wheel "$program" 'text(data + "/share/kedge/recipes/a b.yaml") == "recipe\n"'
for file in "$program" "$library"; do
    pass "${file##*/}: RECORD has every file with its digest and length" in_wheel "$file" \
        'sorted(text(info + "/RECORD").split("\n")[:-2]) == sorted(f"{n},{digest(n)},{len(wheel.read(n))}" for n in names if n != info + "/RECORD")'
    pass "${file##*/}: the tag is that of its name" in_wheel "$file" '"Tag: '$tag'\n" in text(info + "/WHEEL")'
    pass "${file##*/}: metadata come last" in_wheel "$file" 'names[-1].startswith(info) and not names[0].startswith(info)'
done
pass "licences are metadata, not data" in_wheel "$program" \
    'text(info + "/licenses/copyright.flint") and "License-File: SOURCES\n" in text(info + "/METADATA") and not any("share/doc" in n for n in names)'
pass "libgomp's licence is with the library" in_wheel "$library" 'text(info + "/licenses/copyright.gcc-12") and text(info + "/licenses/GPL-3")'
pass "no package is needed for the program" in_wheel "$program" '"Requires-Dist" not in text(info + "/METADATA")'
pass "torch is not needed for the library" in_wheel "$library" \
    '[l for l in text(info + "/METADATA").split("\n") if l.startswith("Requires-Dist")] == ["Requires-Dist: numpy", "Requires-Dist: torch; extra == \"torch\""]'
pass "the module is that of the tree" in_wheel "$library" 'text("kedge/__init__.py") == open("guests/lib/kedge.py").read()'
same_bytes() { wheel "$work/again" "$dist" && cmp "$program" "$work/again/${program##*/}" && cmp "$library" "$work/again/${library##*/}"; }
pass "the same files give the same bytes" same_bytes
no_dist() { ! wheel "$at" "$work/none" 2>"$work/said" && grep -q "expected a folder, found none; make dist makes it" "$work/said"; }
pass "without make dist it says what to do" no_dist
for_arm() {
    wheel "$work/arm" "$dist" aarch64 && arm=py3-none-manylinux_2_34_aarch64 && in_wheel "$work/arm/kedge_rl-$version-$arm.whl" \
        '"Tag: '$arm'\n" in text(info + "/WHEEL") and "x86" not in text(info + "/WHEEL")' && [ -f "$work/arm/libkedge-$version-$arm.whl" ]
}
pass "another machine is another tag" for_arm
no_machine() { ! wheel "$at" "$dist" arm64 2>"$work/said" && grep -q "x86_64 or aarch64, found .* arm64" "$work/said"; }
pass "a machine that has no tag is refused" no_machine
with_kernels() {
    cp -r "$dist" "$work/gpu" && mkdir -p "$work/gpu/cuda/lib/kedge" && echo kernels >"$work/gpu/cuda/lib/kedge/libkedge_cuda.so" &&
        wheel "$work/three" "$work/gpu" && in_wheel "$work/three/kedge_rl_cuda-$version-$tag.whl" \
        'text(data + "/lib/kedge/libkedge_cuda.so") == "kernels\n" and "Requires-Dist: kedge-rl == '"$version"'\n" in text(info + "/METADATA")'
}
pass "kernels are a wheel of their own, of the program's version" with_kernels
no_option() { ! wheel --out 2>"$work/said" && grep -q "found --out" "$work/said"; }
pass "an option is refused" no_option

installs() {
    "$python" -m venv "$work/env" && "$work/env/bin/pip" install -q --no-index --no-deps "$program" "$library" &&
        [ "$("$work/env/bin/kedge")" = "it runs from $work/env/bin" ] && [ -f "$work/env/lib/kedge/libflint.so.17" ] &&
        [ -f "$work/env/share/kedge/recipes/a b.yaml" ] && "$work/env/bin/pip" uninstall -q -y kedge-rl && [ ! -e "$work/env/bin/kedge" ]
}
if "$python" -c 'import ensurepip' 2>/dev/null; then pass "pip installs and removes them" installs; else skipped "pip installs and removes them" "no python3-venv"; fi
exit $((failures > 0))
