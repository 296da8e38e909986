#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-3.0-or-later
# Runs the quick checks in parallel, and shows the output of a check only if it fails. ansible-lint, which is slow, reads
# only what has changed since it passed; with CI set it reads everything.
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

# Unit tests wait for half of their time, so there are more processes than processors.
processes=$(($(nproc) * 3 / 2))
processes=$((processes < 2 ? 2 : processes > 8 ? 8 : processes))
# The longest check first.
start unit-tests pytest -q --no-header -n "$processes" -m "not llama" tests/unit tests/tooling
start ansible-lint python scripts/lint.py
start mypy mypy -p ansible_collections.llama_cpp.cluster.plugins
start prose proselint check --config scripts/proselint.json \
    README.md CODE_OF_CONDUCT.md CONTRIBUTING.md SECURITY.md docs roles/*/README.md
start actionlint actionlint .github/workflows/*.yml
start yamllint yamllint --strict .
start ruff ruff check --quiet --output-format concise .
start ruff-format ruff format --check --quiet .

failed=0
for pid in "${pids[@]}"; do
    wait "$pid" || failed=1
done
pids=()
exit "$failed"
