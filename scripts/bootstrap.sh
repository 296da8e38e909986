#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# Makes .venv with the pinned requirements of one kind ("run" or "dev") and links this checkout in as a collection.
# A second call with the same requirements does nothing. With the kind "python", it only prints which Python it would take.
set -eu

kind=$1
top=$(cd "$(dirname "$0")/.." && pwd -P)
cache=${LLAMA_CPP_CLUSTER_CACHE:-${HOME:-/nonexistent}/.cache/llama_cpp_cluster}
venv=$top/.venv
export PIP_CACHE_DIR="$cache/pip" PIP_DISABLE_PIP_VERSION_CHECK=1

say() { printf '==> %s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"
    elif command -v sudo >/dev/null 2>&1; then sudo "$@"
    else return 1
    fi
}

case $cache in
    *[!A-Za-z0-9._/+-]* | [!/]*)
        die "the cache folder is \"$cache\"; set LLAMA_CPP_CLUSTER_CACHE to an absolute path of ASCII letters, digits and . _ / + - only." ;;
esac
mkdir -p "$cache" 2>/dev/null && [ -w "$cache" ] ||
    die "the cache folder $cache cannot be made or written to; set LLAMA_CPP_CLUSTER_CACHE to one that can."

find_python() {
    folders=$(printf '%s' "$PATH" | tr : '\n')
    for name in python3 python3.14 python3.13 python3.12 python3.11; do
        # The first one in PATH may be a shim of pyenv that has no interpreter.
        while IFS= read -r folder; do
            if "$folder/$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' </dev/null 2>/dev/null; then
                printf '%s\n' "$folder/$name"
                return
            fi
        done <<EOF
$folders
EOF
    done
    die "Python 3.11 or newer is needed (ansible-core 2.19 asks for it) and none was found on PATH; install python3."
}

[ "$kind" != python ] || { find_python; exit; }

make_venv() {
    python=$(find_python)
    if "$python" -c 'import ensurepip' 2>/dev/null; then
        "$python" -m venv --clear "$venv"
        return
    fi
    # Debian and Ubuntu have ensurepip in a separate package.
    package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    if command -v apt-get >/dev/null 2>&1 && { [ "$(id -u)" = 0 ] || command -v sudo >/dev/null 2>&1; }; then
        say "Installing $package (this Python has no ensurepip)"
        as_root apt-get -qq update &&
            as_root env DEBIAN_FRONTEND=noninteractive apt-get -qqy install --no-install-recommends "$package" >/dev/null &&
            "$python" -m venv --clear "$venv" && return
    fi
    if "$python" -m pip --version >/dev/null 2>&1; then
        "$python" -m venv --clear --without-pip "$venv"
        "$python" -m pip --python "$venv/bin/python" install --quiet pip
        return
    fi
    die "$python can make no virtual environment: install $package (or pip for $python) and run this again."
}

stamp_of() {
    "$venv/bin/python" - "$top/requirements/$1.txt" <<'PY'
import hashlib, sys
print(hashlib.sha256(sys.version.encode() + open(sys.argv[1], "rb").read()).hexdigest()[:16])
PY
}

# A .venv that was copied or moved with the checkout belongs to another folder.
"$venv/bin/pip" --version 2>/dev/null | grep -qF " $venv/" || { say "Making .venv"; make_venv; }

set --
for part in run dev; do
    set -- "$@" -r "$top/requirements/$part.txt"
    stamp=$venv/.requirements-$part-$(stamp_of "$part")
    if [ ! -e "$stamp" ]; then
        say "Installing requirements/$part.txt into .venv (pinned, with digests; half a minute to a minute)"
        "$venv/bin/python" -m pip install --quiet --no-compile --require-hashes --only-binary :all: "$@" ||
            die "the requirements could not be installed: see the lines above; this needs a Python package index, and 1 GB of disk."
        # Compile on all processors, and without the collections, of which few are used. pip would compile everything on one
        # processor and take three times as long. (Some packages have templates that are not Python.)
        "$venv/bin/python" -m compileall -q -j 0 -x /ansible_collections/ "$venv/lib" >/dev/null || :
        rm -f "$venv/.requirements-$part-"*
        : >"$stamp"
    fi
    [ "$part" = "$kind" ] && break
done

# Ansible finds a collection by its path: .../ansible_collections/<namespace>/<name>.
place=$venv/collections/ansible_collections/llama_cpp
mkdir -p "$place"
[ "$(readlink "$place/cluster" 2>/dev/null || true)" = "$top" ] || ln -sfn "$top" "$place/cluster"

# Ansible also looks in the folders that Python knows, so it finds the collection from any folder.
# Tests and other programs import shared code (tests/support) and the program that writes models.
for packages in "$venv"/lib/python3.*/site-packages; do
    printf '%s\n' "$venv/collections" >"$packages/llama_cpp_cluster_collection.pth"
    [ "$kind" = run ] || printf '%s\n' "$top/tests" "$top/playbooks/files" >"$packages/llama_cpp_cluster.pth"
done

# In other folders, ansible.cfg of this clone does not hold; its setting for security does.
grep -q INJECT_FACT_VARS "$venv/bin/activate" ||
    echo "export ANSIBLE_INJECT_FACT_VARS=\${ANSIBLE_INJECT_FACT_VARS:-false}" >>"$venv/bin/activate"
