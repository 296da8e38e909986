#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-3.0-or-later
# The quick checks, side by side. A check's output is shown only if it failed.
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

start() {
    local name=$1
    shift
    (
        begin=${EPOCHREALTIME/,/.}
        status=0
        "$@" >"$logs/$name" 2>&1 </dev/null &
        trap 'kill "$!"; exit 1' TERM
        wait "$!" || status=$?
        outcome=ok
        [ "$status" = 0 ] || outcome="FAILED (exit status $status)"
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
# The longest first. ansible-lint uses one processor, so it runs in parts; what a part leaves out is another one's.
start unit-tests pytest -q --no-header -n "$processes" -m "not llama" tests/unit tests/tooling
start lint-rest ansible-lint -q --exclude roles --exclude extensions --exclude tests
start lint-roles ansible-lint -q roles
start lint-tests ansible-lint -q tests extensions --exclude roles
start mypy mypy -p ansible_collections.llama_cpp.cluster.plugins
start yamllint yamllint --strict .
start ruff ruff check --quiet --output-format concise .
start ruff-format ruff format --check --quiet .

failed=0
for pid in "${pids[@]}"; do
    wait "$pid" || failed=1
done
pids=()
exit "$failed"
