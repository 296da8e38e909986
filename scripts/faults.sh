#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# `make test-faults`: tests which message follows each fault and how soon, and that the cluster recovers by itself. The tests
# run on this machine and then, as root, on hosts that this script makes and removes. It prints the table and writes it to the
# cache (faults.json). Arguments go to pytest, as in `scripts/faults.sh -k frozen`.
set -eu

cd "$(dirname "$0")/.."
PATH=$PWD/.venv/bin:$PATH
export PATH ANSIBLE_CONFIG="$PWD/ansible.cfg" LAB_NUMBER="${LAB_NUMBER:-104}"

outcome=0
ansible-playbook tests/support/releases.yml
pytest -q "$@" tests/faults/test_loopback.py tests/faults/test_not_repeated.py tests/faults/test_upgrade_order.py || outcome=$?
# Exit status 5 of pytest: the arguments select no test.
[ "$outcome" != 5 ] || outcome=0
if [ "$(id -u)" != 0 ]; then
    echo "Not run: the faults of hosts; they are containers, which needs root: sudo make test-faults" >&2
    [ "$outcome" != 0 ] || outcome=77
    exit "$outcome"
fi
trap 'scripts/lab.sh down' EXIT
trap 'exit 130' INT TERM
scripts/lab.sh up master worker1 worker2 worker3 worker4
# Without localhost, which would record the state of the clean hosts of a whole lab. These tests do not need it.
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
# The one group becomes two, and its API releases a worker.
on_hosts -i inventories/lab/gateway.yml playbooks/site.yml -e llama_server_pause=true
gateway=0
pytest -q "$@" tests/faults/test_gateway.py || gateway=$?
[ "$gateway" = 5 ] || [ "$gateway" = 0 ] || outcome=$gateway
exit "$outcome"
