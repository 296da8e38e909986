#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# `make test`: every tier in turn, the quick ones first. Stops at the first that fails and says what each took. A tier that
# cannot run here (exit status 77) is named at the end; with CI set, as .ci/run does, it is a failure.
set -eu

cd "$(dirname "$0")/.."
PATH=$PWD/.venv/bin:$PATH
export PATH ANSIBLE_CONFIG="$PWD/ansible.cfg"
summary=
not_run=

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
        exit 1
    fi
    summary="$summary  $(printf '%5d s  %s' "$(($(date +%s) - began))" "$name")\n"
}

tier "Lint and unit tests" scripts/check.sh
tier "Documentation, examples, argument specs and the built collection" pytest -q -n auto tests/collection
tier "ansible-test sanity" python scripts/sanity.py
tier "The llama.cpp releases that the next tier runs" ansible-playbook tests/integration/releases.yml
tier "Integration: real llama.cpp processes and Ansible runs" pytest -q -n "${TEST_PROCESSES:-2}" tests/integration
tier "A cluster on test hosts, from minimal systems and back" scripts/cluster.sh
# Last, as what is wrong with a role shows sooner on hosts that are not emulated.
tier "A cluster of aarch64 hosts" scripts/aarch64.sh

if [ -z "$not_run" ]; then
    printf '\nAll tiers passed:\n%b' "$summary"
    exit
fi
printf '\nPassed:\n%b\nNOT RUN (see above why):\n%b' "$summary" "$not_run"
[ -z "${CI:-}" ]
