#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# `make test-serve`: tests an API over workers on test hosts that this script makes and removes. Arguments go to pytest, as in
# `scripts/serve.sh -k killed`. Exit status 77: the test cannot run here; a message says why.
set -eu

cd "$(dirname "$0")/.."
if [ "$(id -u)" != 0 ]; then
    echo "Not run: the API on test hosts; it makes containers, which needs root: sudo make test-serve" >&2
    exit 77
fi
# A separate lab from that of `make lab`.
export LAB_NUMBER="${LAB_NUMBER:-107}"
PATH=$PWD/.venv/bin:$PATH
export PATH ANSIBLE_CONFIG="$PWD/ansible.cfg"

trap 'scripts/lab.sh down' EXIT
trap 'exit 130' INT TERM
on_hosts() {
    ansible-playbook -i inventories/lab/hosts.yml -i inventories/lab/serving.yml "$@"
}
scripts/lab.sh up
on_hosts extensions/molecule/cluster/prepare.yml
on_hosts playbooks/site.yml --check --diff
python tests/lab/listing.py compare
pytest -v --durations 10 "$@" tests/serve
# Turn on the chat page, which reset must remove as well.
on_hosts playbooks/serve.yml -e llama_server_ui=true
on_hosts playbooks/reset.yml -e gguf_model_remove_files=true -e rpc_server_remove_cache=true
python tests/lab/listing.py compare
