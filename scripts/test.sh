#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# `make test`: runs every tier in turn, the quick ones first. It stops at the first tier that fails, and says how long each
# took. A tier that cannot run here (exit status 77) is named at the end; with CI set, as .ci/run does, it is a failure.
#
# Some tiers begin before their turn, in parallel with others: ansible-test keeps only one processor busy, and the clusters
# often wait. Their output and their failures appear in their turn.
set -eu

cd "$(dirname "$0")/.."
PATH=$PWD/.venv/bin:$PATH
export PATH ANSIBLE_CONFIG="$PWD/ansible.cfg"
cache=${LLAMA_CPP_CLUSTER_CACHE:-${HOME:-/nonexistent}/.cache/llama_cpp_cluster}
# Keep compiled bytecode, whatever the shell sets: otherwise each of a thousand processes would compile everything again.
export PYTHONPYCACHEPREFIX="$cache/bytecode"
unset PYTHONDONTWRITEBYTECODE
# Use the short forms of tests that have their own make target.
export AARCH64_INVENTORY=lab_aarch64/hosts.yml PYTEST_ADDOPTS="${PYTEST_ADDOPTS:-} -m 'not long'"
# A folder for each checkout, because several may be tested at the same time.
logs=$cache/test/$(echo "$PWD" | tr / _)
rm -rf "$logs"
mkdir -p "$logs"
summary=
not_run=
hosts=   # the molecule scenarios that may have made hosts
state=$(mktemp -d)   # files with the state of each tier, named by its key

# start KEY COMMAND...: starts a tier in its own session, which can be ended as a whole with SIGINT, so that tests clean up as
# on Ctrl-C. A shell in between sends this signal, also if this script is killed, and writes how long the tier took. Once that
# is written, the tier's process id may belong to another process.
start() {
    : >"$state/$1.failed"
    [ "$2" != scripts/molecule.sh ] || hosts="$hosts $3"
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

# begin KEY COMMAND...: starts a tier before its turn.
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

# tier KEY NAME [COMMAND...]: waits for a tier, after starting it with the command if it has not begun.
tier() {
    key=$1 name=$2
    shift 2
    printf '\n==> %s\n' "$name"
    beside=
    if [ -e "$state/$key.shown" ]; then
        beside=" (beside others)"
        # Check the process id as well, in case the shell was killed and has written nothing.
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
        for scenario in $hosts; do
            scripts/molecule.sh "$scenario" destroy >/dev/null 2>&1 || :
        done
    fi
    # Print the failure last, so that it is seen.
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
# Only root can make hosts. Install what they need now: tiers that run in parallel also install packages, and installations
# do not wait for each other. If this fails, the cluster tiers say so in their turn.
makes_hosts=
[ "$(id -u)" != 0 ] || ! python tests/lab/lab.py tools || makes_hosts=yes
tier releases "The llama.cpp releases that the tests run" ansible-playbook tests/support/releases.yml
# Begin the clusters after what compiles the same files, and not beside each other if LAB_NUMBER puts all hosts into one lab.
if [ -n "$makes_hosts" ]; then
    begin cluster scripts/molecule.sh cluster
    if [ -z "${LAB_NUMBER:-}" ]; then
        begin aarch64 scripts/molecule.sh aarch64
        begin pages scripts/molecule.sh pages
    fi
fi
tier sanity "ansible-test sanity"
tier integration "Integration: real llama.cpp processes and Ansible runs" scripts/integration.sh
tier cluster "A cluster on test hosts, from minimal systems and back" scripts/molecule.sh cluster
tier aarch64 "A cluster of aarch64 hosts" scripts/molecule.sh aarch64
tier pages "The commands on README and docs/start, with test hosts" scripts/molecule.sh pages

if [ -z "$not_run" ]; then
    printf '\nAll tiers passed:\n%b' "$summary"
    exit
fi
printf '\nPassed:\n%b\nNOT RUN (see above why):\n%b' "$summary" "$not_run"
[ -z "${CI:-}" ]
