#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# `make test-faults`: what breaks, what is then said and how soon, and that all is ready again by itself. First on this machine,
# then, as root, on hosts that it makes and removes. The table is printed, and written to the cache (faults.json).
# Arguments go to pytest, as in `scripts/faults.sh -k frozen`.
set -eu

cd "$(dirname "$0")/.."
PATH=$PWD/.venv/bin:$PATH
export PATH ANSIBLE_CONFIG="$PWD/ansible.cfg" LAB_NUMBER="${LAB_NUMBER:-104}"

outcome=0
ansible-playbook tests/support/releases.yml
pytest -q "$@" tests/faults/test_loopback.py tests/faults/test_not_repeated.py tests/faults/test_upgrade_order.py || outcome=$?
# 5: none is left by what the arguments choose.
[ "$outcome" != 5 ] || outcome=0
if [ "$(id -u)" != 0 ]; then
    echo "Not run: the faults of hosts; they are containers, which needs root: sudo make test-faults" >&2
    [ "$outcome" != 0 ] || outcome=77
    exit "$outcome"
fi
trap 'scripts/lab.sh down' EXIT
trap 'exit 130' INT TERM
scripts/lab.sh up master worker1 worker2 worker3 worker4
# What is on the clean hosts does not matter here; the preparation's look at them, from localhost, is at those of a whole lab.
on_hosts() {
    ansible-playbook -i inventories/lab/hosts.yml "$@"
}
on_hosts -i inventories/lab/gateway.yml --limit '!localhost' extensions/molecule/cluster/prepare.yml
on_hosts playbooks/site.yml
hosts=0
pytest -q "$@" tests/faults/test_hosts.py || hosts=$?
[ "$hosts" = 5 ] || [ "$hosts" = 0 ] || outcome=$hosts
# From here on an API holds the workers.
on_hosts -i inventories/lab/serving.yml playbooks/site.yml
api=0
pytest -q "$@" tests/faults/test_api.py || api=$?
[ "$api" = 5 ] || [ "$api" = 0 ] || outcome=$api
# The one group becomes two, and its API lets a worker go.
on_hosts -i inventories/lab/gateway.yml playbooks/site.yml -e llama_server_pause=true
gateway=0
pytest -q "$@" tests/faults/test_gateway.py || gateway=$?
[ "$gateway" = 5 ] || [ "$gateway" = 0 ] || outcome=$gateway
exit "$outcome"
