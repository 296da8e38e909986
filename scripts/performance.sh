#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# `make test-performance`: runs the long form of the tests in test_repack.py and test_rpc_master.py, which `make test` has in
# short, against upstream's build and with sanitizers. FUZZ_SESSIONS is the number of malformed sessions of each kind (300 by
# default). Arguments go to pytest, as in `scripts/performance.sh -k experts`.
set -eu

cd "$(dirname "$0")/.."
PATH=$PWD/.venv/bin:$PATH
export PATH ANSIBLE_CONFIG="$PWD/ansible.cfg"

# If this machine is not aarch64, the tests of aarch64 need a cross compiler and an emulator.
missing=
if [ "$(uname -m)" != aarch64 ]; then
    command -v qemu-aarch64-static >/dev/null || missing=qemu-user-static
    command -v aarch64-linux-gnu-g++ >/dev/null || missing="$missing g++-aarch64-linux-gnu"
fi
if [ -n "$missing" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get -qq update || :
    # shellcheck disable=SC2086 # two words are two packages
    DEBIAN_FRONTEND=noninteractive apt-get -qqy install --no-install-recommends $missing >/dev/null
fi

# Puts the source into the cache, and installs the build tools.
ansible-playbook tests/support/releases.yml
scripts/patches.sh fetch
exec pytest -q --durations 5 "$@" tests/performance
