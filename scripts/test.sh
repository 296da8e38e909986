#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# `make test`: every tier in turn, the quick ones first. Stops at the first that fails and says what each took. A tier that
# cannot run here (exit status 77) is named at the end; with CI set, as .ci/run does, it is a failure.
#
# The tier before the last mostly waits, and the last begins with minutes of compiling: that is done beside the other. So is
# ansible-test, which keeps one processor busy, beside the compiling that comes before its turn. What these say is kept for
# their turns, and that one failed is its own tier's failure.
set -eu

cd "$(dirname "$0")/.."
PATH=$PWD/.venv/bin:$PATH
export PATH ANSIBLE_CONFIG="$PWD/ansible.cfg"
summary=
not_run=
sanity=       # the process of ansible-test, while it runs
beside=       # the process that prepares the last tier, while it runs
unfinished=   # hosts of the last tier may be there
log=${LLAMA_CPP_CLUSTER_CACHE:-${HOME:-/nonexistent}/.cache/llama_cpp_cluster}/molecule/aarch64-create.log

tier() {
    name=$1
    shift
    printf '\n==> %s\n' "$name"
    began=$(date +%s)
    status=0
    "$@" || status=$?
    if [ "$status" = 77 ]; then
        not_run="$not_run  $name\n"
        return
    fi
    if [ "$status" != 0 ]; then
        printf '\nerror: %s failed after %d s. Passed before it:\n%b' "$name" "$(($(date +%s) - began))" "${summary:-  nothing\n}" >&2
        sed '1s/^/Tests that failed:\n/' "$FAILED_TESTS" >&2
        exit 1
    fi
    summary="$summary  $(printf '%5d s  %s' "$(($(date +%s) - began))" "$name")\n"
}

prepare_aarch64() {
    # The hosts of two tiers can be there at a time, unless they are told to be of one lab.
    if [ "$(id -u)" != 0 ] || [ -n "${LAB_NUMBER:-}" ]; then return; fi
    mkdir -p "${log%/*}"
    # Ended by the kernel when this is killed. It begins when the hosts of the other tier are there: both install packages here.
    setpriv --pdeathsig TERM setsid sh -c '
        until LAB_NUMBER=100 python tests/lab/lab.py status >/dev/null; do sleep 2; done
        exec scripts/aarch64.sh create' </dev/null >"$log" 2>&1 &
    beside=$! unfinished=yes
    printf 'The last tier is begun beside this one: %s\n' "$log"
}

begin_sanity() {
    python scripts/sanity.py </dev/null >"$SANITY_LOG" 2>&1 &
    sanity=$!
}

end_sanity() {
    said=0
    wait "$sanity" || said=$?
    sanity=
    cat "$SANITY_LOG"
    return "$said"
}

end_preparation() {
    [ -z "$sanity" ] || kill "$sanity" 2>/dev/null || :
    [ -z "$sanity" ] || wait "$sanity" || :
    [ -z "$beside" ] || kill "$beside" 2>/dev/null || :
    [ -z "$beside" ] || wait "$beside" || :
    [ -z "$unfinished" ] || scripts/aarch64.sh destroy >/dev/null 2>&1 || :
}
FAILED_TESTS=$(mktemp)
SANITY_LOG=$(mktemp)
export FAILED_TESTS
trap 'end_preparation; rm -f "$FAILED_TESTS" "$SANITY_LOG"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

cluster() {
    prepare_aarch64
    scripts/cluster.sh
}

aarch64() {
    if [ -z "$beside" ]; then
        scripts/aarch64.sh
        return
    fi
    printf 'Its beginning, beside the tier before:\n'
    tail -n +1 -f --pid="$beside" "$log"
    prepared=0
    wait "$beside" || prepared=$?
    beside=
    [ "$prepared" = 0 ] || return "$prepared"
    unfinished=
    scripts/aarch64.sh finish
}

tier "Lint and unit tests" scripts/check.sh
tier "Documentation, examples, argument specs and the built collection" pytest -q -n auto tests/collection
begin_sanity
tier "The llama.cpp releases that the tests run" ansible-playbook tests/integration/releases.yml
tier "ansible-test sanity, begun beside the tier before" end_sanity
# They wait a lot, so two also keep a single processor busy; with more, some would miss their time limits.
processors=$(getconf _NPROCESSORS_ONLN)
[ "$processors" -gt 2 ] || processors=2
tier "Integration: real llama.cpp processes and Ansible runs" pytest -q -n "${TEST_PROCESSES:-$processors}" tests/integration
tier "A cluster on test hosts, from minimal systems and back" cluster
# Last, as what is wrong with a role shows sooner on hosts that are not emulated.
tier "A cluster of aarch64 hosts" aarch64

if [ -z "$not_run" ]; then
    printf '\nAll tiers passed:\n%b' "$summary"
    exit
fi
printf '\nPassed:\n%b\nNOT RUN (see above why):\n%b' "$summary" "$not_run"
[ -z "${CI:-}" ]
