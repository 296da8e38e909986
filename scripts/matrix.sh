#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# `make test-matrix`: runs masters with workers of every generation of the RPC protocol, and compares the results with the page
# docs/reference/compatibility.md. It builds three releases more than the other tests, into the cache. `scripts/matrix.sh write`
# writes that page again.
set -eu

cd "$(dirname "$0")/.."
PATH=$PWD/.venv/bin:$PATH
export PATH ANSIBLE_CONFIG="$PWD/ansible.cfg" ALL_GENERATIONS=yes

ansible-playbook tests/support/releases.yml -e all_generations=true
if [ "${1:-}" = write ]; then
    exec python tests/integration/compatibility.py
fi
exec pytest -q -n "${TEST_PROCESSES:-2}" "$@" tests/integration/test_compatibility.py
