#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-3.0-or-later
# Runs the quick checks in parallel, and shows the output of a check only if it fails. ansible-lint, which is slow, runs only
# if a YAML file has changed since it passed; with CI set, always.
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${LLAMA_CPP_CLUSTER_CACHE:-${HOME:-/nonexistent}/.cache/llama_cpp_cluster}
mkdir -p "$cache"
export LLAMA_CPP_CLUSTER_CACHE="$cache" PATH="$PWD/.venv/bin:$PATH" ANSIBLE_HOME="$cache/ansible" \
    HYPOTHESIS_STORAGE_DIRECTORY="$cache/hypothesis" MYPY_CACHE_DIR="$cache/mypy" MYPYPATH=.venv/collections NO_COLOR=1 \
    RUFF_CACHE_DIR="$cache/ruff" PYTHONPYCACHEPREFIX="$cache/bytecode"
# Keep compiled bytecode, whatever the shell sets: otherwise each test process would compile everything again.
unset PYTHONDONTWRITEBYTECODE
logs=$(mktemp -d)
pids=()
# End running checks when this script is interrupted: as background processes they would continue.
trap 'kill "${pids[@]}" 2>/dev/null || true; rm -rf "$logs"' EXIT

# start NAME COMMAND...: starts a check.
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

# A digest of what ansible-lint reads; a file of that name says that it passed.
read=$(git ls-files -coz --exclude-standard -- '*.yml' '*.yaml' .ansible-lint 'requirements/*.txt' | { xargs -0 sha256sum 2>&1 || :; } | sha256sum)
passed=$cache/passed/ansible-lint-${read:0:40}
mkdir -p "$cache/passed"

# Unit tests wait for half of their time, so there are more processes than processors.
processes=$(($(nproc) * 3 / 2))
processes=$((processes < 2 ? 2 : processes > 8 ? 8 : processes))
# The longest check first.
start unit-tests pytest -q --no-header -n "$processes" -m "not llama" tests/unit tests/tooling
linter=
if [ -n "${CI:-}" ] || [ ! -e "$passed" ]; then
    start ansible-lint ansible-lint -q
    linter=${pids[-1]}
fi
start mypy mypy -p ansible_collections.llama_cpp.cluster.plugins
start actionlint actionlint .github/workflows/*.yml
start yamllint yamllint --strict .
start ruff ruff check --quiet --output-format concise .
start ruff-format ruff format --check --quiet .

failed=0
for pid in "${pids[@]}"; do
    if ! wait "$pid"; then
        failed=1
    elif [ "$pid" = "$linter" ]; then
        : >"$passed"
    fi
done
pids=()
exit "$failed"
