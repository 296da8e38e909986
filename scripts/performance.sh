#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# `make test-performance`: the long form of what `make test` has in tests/integration/test_repack.py, against upstream's
# build and with sanitizers. FUZZ_SESSIONS says how many malformed sessions are tried (300 of each kind). Arguments go to
# pytest, as in `scripts/performance.sh -k experts`.
set -eu

cd "$(dirname "$0")/.."
PATH=$PWD/.venv/bin:$PATH
export PATH ANSIBLE_CONFIG="$PWD/ansible.cfg"

# The source is in the cache then, and what builds it is installed.
ansible-playbook tests/integration/releases.yml
exec pytest -q --durations 5 "$@" tests/performance
