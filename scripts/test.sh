#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# `make test`: every tier in turn, the quick ones first. Stops at the first that fails and says what each took. A tier that
# cannot run here (exit status 77) is named at the end; with CI set, as .ci/run does, it is a failure.
#
# Some begin before their turn, beside others: ansible-test keeps one processor busy; the cluster mostly waits; the aarch64
# cluster begins with minutes of compiling. What they say is kept for their turns, and that one failed is its own failure.
set -eu

cd "$(dirname "$0")/.."
PATH=$PWD/.venv/bin:$PATH
export PATH ANSIBLE_CONFIG="$PWD/ansible.cfg"
summary=
not_run=
hosts=   # the scripts that may have hosts up
beside=$(mktemp -d)
FAILED_TESTS=$beside/failed
export FAILED_TESTS
: >"$FAILED_TESTS"

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

# begin NAME COMMAND...: in a session of its own, to be ended as a whole; it is also told to end when this is killed.
begin() {
    name=$1
    shift
    setpriv --pdeathsig TERM setsid "$@" </dev/null >"$beside/$name.log" 2>&1 &
    echo $! >"$beside/$name"
}

# finish NAME: show what it says, wait for its end, and be what it was.
finish() {
    pid=$(cat "$beside/$1")
    printf 'Begun before its turn:\n'
    tail -n +1 -f --pid="$pid" "$beside/$1.log"
    was=0
    wait "$pid" || was=$?
    rm "$beside/$1"
    return "$was"
}

end_all() {
    for began_beside in "$beside"/sanity "$beside"/cluster "$beside"/aarch64; do
        [ -e "$began_beside" ] || continue
        pid=$(cat "$began_beside")
        kill -- "-$pid" 2>/dev/null || :
        wait "$pid" || :
    done
    for script in $hosts; do
        "$script" destroy >/dev/null 2>&1 || :
    done
    rm -rf "$beside"
}
trap end_all EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Hosts can be made by root. Those of two tiers can be there at a time, unless they are told to be of one lab.
begin_cluster() {
    [ "$(id -u)" = 0 ] || return 0
    # Now, as the tier beside it installs packages, too, and these do not wait for each other.
    python tests/lab/lab.py tools || return 0
    hosts=scripts/cluster.sh
    begin cluster scripts/cluster.sh
}

cluster() {
    if [ ! -e "$beside/cluster" ]; then
        scripts/cluster.sh
        return
    fi
    if [ -z "${LAB_NUMBER:-}" ]; then
        hosts="$hosts scripts/aarch64.sh"
        # It begins when the hosts of this tier are there: both install packages here.
        begin aarch64 sh -c '
            until LAB_NUMBER=100 python tests/lab/lab.py status >/dev/null; do sleep 2; done
            exec scripts/aarch64.sh create'
    fi
    finish cluster || return
    hosts=${hosts#scripts/cluster.sh}
}

aarch64() {
    if [ ! -e "$beside/aarch64" ]; then
        scripts/aarch64.sh
        return
    fi
    finish aarch64 || return
    hosts=
    scripts/aarch64.sh finish
}

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null && ! command -v ccache >/dev/null; then
    echo "==> Installing ccache: several tiers compile the same"
    apt-get -qq update || :
    DEBIAN_FRONTEND=noninteractive apt-get -qqy install --no-install-recommends ccache >/dev/null
fi

begin sanity python scripts/sanity.py
tier "Lint and unit tests" scripts/check.sh
tier "Documentation, examples, argument specs and the built collection" pytest -q -n auto tests/collection
begin_cluster
tier "The llama.cpp releases that the tests run" ansible-playbook tests/integration/releases.yml
tier "ansible-test sanity" finish sanity
# One processor is for the cluster. These wait a lot, too, so there are two at least.
others=$(($(getconf _NPROCESSORS_ONLN) - 1))
[ "$others" -gt 1 ] || others=2
tier "Integration: real llama.cpp processes and Ansible runs" pytest -q -n "${TEST_PROCESSES:-$others}" tests/integration
tier "A cluster on test hosts, from minimal systems and back" cluster
# Last, as what is wrong with a role shows sooner on hosts that are not emulated.
tier "A cluster of aarch64 hosts" aarch64

if [ -z "$not_run" ]; then
    printf '\nAll tiers passed:\n%b' "$summary"
    exit
fi
printf '\nPassed:\n%b\nNOT RUN (see above why):\n%b' "$summary" "$not_run"
[ -z "${CI:-}" ]
