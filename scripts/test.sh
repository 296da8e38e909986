#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# `make test`: every tier in turn, the quick ones first. Stops at the first that fails and says what each took. A tier that
# cannot run here (exit status 77) is named at the end; with CI set, as .ci/run does, it is a failure.
#
# Some begin before their turn, beside others: ansible-test keeps one processor busy, and the clusters often wait. What they
# say is kept for their turns, and that one failed is its own failure.
set -eu

cd "$(dirname "$0")/.."
PATH=$PWD/.venv/bin:$PATH
export PATH ANSIBLE_CONFIG="$PWD/ansible.cfg"
cache=${LLAMA_CPP_CLUSTER_CACHE:-${HOME:-/nonexistent}/.cache/llama_cpp_cluster}
# What has been compiled once is kept, whatever the shell says: each of a thousand processes would do it all again.
export PYTHONPYCACHEPREFIX="$cache/bytecode"
unset PYTHONDONTWRITEBYTECODE
# The short forms of what has a target of its own.
export AARCH64_INVENTORY=lab_aarch64/hosts.yml PYTEST_ADDOPTS="${PYTEST_ADDOPTS:-} -m 'not long'"
# A folder for each checkout, as several may be tested at a time.
logs=$cache/test/$(echo "$PWD" | tr / _)
rm -rf "$logs"
mkdir -p "$logs"
summary=
not_run=
hosts=   # the scripts that may have hosts up
state=$(mktemp -d)   # of each tier, by its key

# start KEY COMMAND...: in a session of its own, to be ended as a whole, as by Ctrl-C, on which tests clean up. A shell stands
# between, which passes that on, should this be killed as well, and writes what it took: then its number may be another's.
start() {
    : >"$state/$1.failed"
    case "$*" in *scripts/cluster.sh | *scripts/aarch64.sh) hosts="$hosts $2" ;; esac
    # shellcheck disable=SC2016 # for the shell between
    FAILED_TESTS=$state/$1.failed setpriv --pdeathsig TERM sh -c '
        ended=$1/$2.ended
        shift 2
        began=$(date +%s)
        # By itself, what a shell starts in the background ignores Ctrl-C.
        env --default-signal=INT setpriv --pdeathsig TERM setsid "$@" &
        trap "kill -s INT -- -$! 2>/dev/null || kill $!; wait $!" TERM HUP
        status=0
        wait $! || status=$?
        echo $(($(date +%s) - began)) >"$ended"
        exit "$status"' sh "$state" "$@" </dev/null &
    echo $! >"$state/$1.process"
}

# begin KEY COMMAND...: before its turn.
begin() {
    printf 'Begun before its turn: %s, which writes to %s\n' "$1" "$logs/$1.log"
    echo 0 >"$state/$1.shown"
    start "$@" >"$logs/$1.log" 2>&1
}

not_shown() { tail -c "+$(($(cat "$state/$1.shown") + 1))" "$logs/$1.log"; }

show() {
    not_shown "$1" >"$state/more"
    cat "$state/more"
    echo $(($(cat "$state/$1.shown") + $(wc -c <"$state/more"))) >"$state/$1.shown"
}

# tier KEY NAME [COMMAND...]: wait for it; the command is for one that has not begun.
tier() {
    key=$1 name=$2
    shift 2
    printf '\n==> %s\n' "$name"
    beside=
    if [ -e "$state/$key.shown" ]; then
        beside=" (beside others)"
        # The number is looked at in case it was killed, and wrote nothing.
        while [ ! -e "$state/$key.ended" ] && kill -0 "$(cat "$state/$key.process")" 2>/dev/null; do
            show "$key"
            sleep 1
        done
    else
        start "$key" "$@"
    fi
    status=0
    wait "$(cat "$state/$key.process")" || status=$?
    [ -z "$beside" ] || show "$key"
    took=$(cat "$state/$key.ended" 2>/dev/null) || took="?"
    case $status in
        0) summary="$summary  $(printf '%5s s  %s%s' "$took" "$name" "$beside")\n" ;;
        77) not_run="$not_run  $name\n" ;;
        *)
            {
                printf '\nerror: %s failed after %s s. Passed before it:\n%b' "$name" "$took" "${summary:-  nothing\n}"
                sed '1s/^/Tests that failed:\n/' "$state/$key.failed"
            } >"$state/failure"
            exit 1
            ;;
    esac
}

end_all() {
    outcome=$?
    for begun in "$state"/*.shown; do
        [ -e "$begun" ] || continue
        key=$(basename "$begun" .shown)
        not_shown "$key" | tail -n 40 >"$state/last"
        [ ! -s "$state/last" ] || printf '\nNot shown yet, the last lines of %s:\n%s\n' "$logs/$key.log" "$(cat "$state/last")"
    done
    for process in "$state"/*.process; do
        [ ! -e "$process" ] || [ -e "${process%.process}.ended" ] || kill "$(cat "$process")" 2>/dev/null || :
    done
    wait
    if [ "$outcome" != 0 ]; then
        for script in $hosts; do
            "$script" destroy >/dev/null 2>&1 || :
        done
    fi
    # In the end, to be seen.
    [ ! -e "$state/failure" ] || cat "$state/failure" >&2
    rm -rf "$state"
}
trap end_all EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

. scripts/compilers.sh
processes=$(nproc)
[ "$processes" -lt 8 ] || processes=8

begin sanity python scripts/sanity.py
tier check "Lint and unit tests" scripts/check.sh
tier collection "Documentation, examples, argument specs and the built collection" pytest -q -n "$processes" tests/collection
# Hosts can be made by root. What they need is installed now: the tiers beside them install packages, too, and these do not
# wait for each other. Where that fails, the clusters say so in their turns.
if [ "$(id -u)" = 0 ] && python tests/lab/lab.py tools; then
    begin cluster scripts/cluster.sh
fi
tier releases "The llama.cpp releases that the tests run" ansible-playbook tests/support/releases.yml
tier sanity "ansible-test sanity"
# After what else compiles; and not where both clusters are told to be of one lab.
if [ -e "$state/cluster.shown" ] && [ -z "${LAB_NUMBER:-}" ]; then
    begin aarch64 scripts/aarch64.sh
fi
tier integration "Integration: real llama.cpp processes and Ansible runs" scripts/integration.sh
tier cluster "A cluster on test hosts, from minimal systems and back" scripts/cluster.sh
tier aarch64 "A cluster of aarch64 hosts" scripts/aarch64.sh

if [ -z "$not_run" ]; then
    printf '\nAll tiers passed:\n%b' "$summary"
    exit
fi
printf '\nPassed:\n%b\nNOT RUN (see above why):\n%b' "$summary" "$not_run"
[ -z "${CI:-}" ]
