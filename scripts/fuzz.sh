#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# `make test-fuzz`: runs the long form of tests/cluster/test_malformed.py, on test hosts that it makes and removes. FUZZ_SESSIONS is the
# number of sessions for each of the two workers, and FUZZ_FIRST the number of the first session: the same number gives the same session.
set -eu

cd "$(dirname "$0")/.."
if [ "$(id -u)" != 0 ]; then
    echo "Not run: it makes containers, which needs root: sudo make test-fuzz" >&2
    exit 77
fi
export LAB_NUMBER="${LAB_NUMBER:-106}" FUZZ_SESSIONS="${FUZZ_SESSIONS:-500}"
PATH=$PWD/.venv/bin:$PATH
export PATH ANSIBLE_CONFIG="$PWD/ansible.cfg"
trap 'scripts/lab.sh down' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
scripts/lab.sh up master worker1 worker2
ansible-playbook -i inventories/lab/hosts.yml playbooks/site.yml
pytest -q -rP tests/cluster/test_malformed.py "$@"
