#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-3.0-or-later
# The quick checks, side by side. A check's output is shown only if it failed. The slow linter is left out while all that it
# reads is as it was when it passed, and then this says so; with CI set it always runs.
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${LLAMA_CPP_CLUSTER_CACHE:-${HOME:-/nonexistent}/.cache/llama_cpp_cluster}
mkdir -p "$cache"
export PATH="$PWD/.venv/bin:$PATH" ANSIBLE_HOME="$cache/ansible" HYPOTHESIS_STORAGE_DIRECTORY="$cache/hypothesis" \
    MYPY_CACHE_DIR="$cache/mypy" MYPYPATH=.venv/collections NO_COLOR=1 RUFF_CACHE_DIR="$cache/ruff" \
    PYTHONPYCACHEPREFIX="$cache/bytecode"
# What has been compiled once is kept, whatever the shell says: each of the tests' processes would do it all again.
unset PYTHONDONTWRITEBYTECODE
logs=$(mktemp -d)
pids=()
# A check that still runs when this is interrupted ends with it; by itself it would not, being in the background.
trap 'kill "${pids[@]}" 2>/dev/null || true; rm -rf "$logs"' EXIT

# What the checks have read and passed, by its digest; a month long.
passed=$cache/passed
mkdir -p "$passed"
find "$passed" -type f -mtime +30 -delete

# digest_of PATHSPEC...: of these files and of the programs that read them; nothing where it cannot be known.
digest_of() {
    git ls-files -coz --exclude-standard -- "$@" >"$logs/read" 2>/dev/null || return 0
    { ls .venv/.requirements-*; xargs -0 sha256sum <"$logs/read"; } 2>&1 | sha256sum | cut -c 1-40
}

# start NAME COMMAND...; with a digest as `reads`, not where it has passed with that.
start() {
    local name=$1 stamp=${reads:+$passed/$1-$reads}
    shift
    if [ -z "${CI:-}" ] && [ -n "$stamp" ] && [ -e "$stamp" ]; then
        printf '%-14s %7s  %s\n' "$name" "" "ok (unchanged since it passed)"
        return
    fi
    (
        begin=${EPOCHREALTIME/,/.}
        status=0
        "$@" >"$logs/$name" 2>&1 </dev/null &
        trap 'kill "$!"; exit 1' TERM
        wait "$!" || status=$?
        outcome=ok
        [ "$status" = 0 ] || outcome="FAILED (exit status $status)"
        [ "$status" != 0 ] || [ -z "$stamp" ] || : >"$stamp"
        awk -v name="$name" -v begin="$begin" -v end="${EPOCHREALTIME/,/.}" -v outcome="$outcome" \
            'BEGIN { printf "%-14s %5.1f s  %s\n", name, end - begin, outcome }'
        [ "$status" = 0 ] || sed 's/^/    /' "$logs/$name"
        exit "$status"
    ) &
    pids+=("$!")
}

# Half of what a unit test takes it waits for something.
processes=$(($(nproc) * 3 / 2))
processes=$((processes < 2 ? 2 : processes > 8 ? 8 : processes))
# The longest first.
start unit-tests pytest -q --no-header -n "$processes" -m "not llama" tests/unit tests/tooling
# Of modules it reads the options; the code behind them, the scripts and the pages have checks of their own.
reads=$(digest_of . ':!scripts' ':!*.md' ':!tests/*.py' ':!plugins/module_utils') \
    start ansible-lint ansible-lint -q
start mypy mypy -p ansible_collections.llama_cpp.cluster.plugins
start prose python scripts/prose.py
start yamllint yamllint --strict .
start ruff ruff check --quiet --output-format concise .
start ruff-format ruff format --check --quiet .

failed=0
for pid in "${pids[@]}"; do
    wait "$pid" || failed=1
done
pids=()
exit "$failed"
