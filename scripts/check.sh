#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-3.0-or-later
# Runs the quick checks in parallel, and shows the output of a check only if it fails. The slow linter is skipped, with a
# note, if its input is unchanged since it passed; with CI set it always runs.
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${LLAMA_CPP_CLUSTER_CACHE:-${HOME:-/nonexistent}/.cache/llama_cpp_cluster}
mkdir -p "$cache"
export PATH="$PWD/.venv/bin:$PATH" ANSIBLE_HOME="$cache/ansible" HYPOTHESIS_STORAGE_DIRECTORY="$cache/hypothesis" \
    MYPY_CACHE_DIR="$cache/mypy" MYPYPATH=.venv/collections NO_COLOR=1 RUFF_CACHE_DIR="$cache/ruff" \
    PYTHONPYCACHEPREFIX="$cache/bytecode"
# Keep compiled bytecode, whatever the shell sets: otherwise each test process would compile everything again.
unset PYTHONDONTWRITEBYTECODE
logs=$(mktemp -d)
pids=()
# End running checks when this script is interrupted: as background processes they would continue.
trap 'kill "${pids[@]}" 2>/dev/null || true; rm -rf "$logs"' EXIT

# The digests of the inputs with which checks have passed, kept for a month.
passed=$cache/passed
mkdir -p "$passed"
find "$passed" -type f -mtime +30 -delete

# digest_of PATHSPEC...: prints a digest of these files and of the programs that read them, or nothing without git.
digest_of() {
    git ls-files -coz --exclude-standard -- "$@" >"$logs/read" 2>/dev/null || return 0
    { ls .venv/.requirements-*; xargs -0 sha256sum <"$logs/read"; } 2>&1 | sha256sum | cut -c 1-40
}

# start NAME COMMAND...: starts a check, unless it has passed with the digest in `reads`.
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

# Unit tests wait for half of their time, so there are more processes than processors.
processes=$(($(nproc) * 3 / 2))
processes=$((processes < 2 ? 2 : processes > 8 ? 8 : processes))
# The longest check first.
start unit-tests pytest -q --no-header -n "$processes" -m "not llama" tests/unit tests/tooling
# ansible-lint reads only the options of modules. The code behind them, the scripts and the pages have other checks.
reads=$(digest_of . ':!scripts' ':!*.md' ':!tests/*.py' ':!plugins/module_utils') \
    start ansible-lint ansible-lint -q
start mypy mypy -p ansible_collections.llama_cpp.cluster.plugins
start prose python scripts/prose.py
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
