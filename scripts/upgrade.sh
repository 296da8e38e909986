#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# `make test-upgrade`: tests a cluster in which something breaks during an upgrade, on test hosts that this script makes and
# removes. Arguments go to pytest, as in `scripts/upgrade.sh -k killed`. Exit status 77: the test cannot run here; a message
# says why.
set -eu

cd "$(dirname "$0")/.."
if [ "$(id -u)" != 0 ]; then
    echo "Not run: upgrades of test hosts; it makes containers, which needs root: sudo make test-upgrade" >&2
    exit 77
fi
# A separate lab from that of `make lab`.
export LAB_NUMBER="${LAB_NUMBER:-105}"
PATH=$PWD/.venv/bin:$PATH
export PATH ANSIBLE_CONFIG="$PWD/ansible.cfg"

trap 'scripts/lab.sh down' EXIT
trap 'exit 130' INT TERM
scripts/lab.sh up master worker1 worker2
pytest -v --durations 10 "$@" tests/upgrade
