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
[ "$(uname -m)" = aarch64 ] || packages=qemu-user-static
cache=${LLAMA_CPP_CLUSTER_CACHE:-${HOME:-/nonexistent}/.cache/llama_cpp_cluster}
. scripts/compilers.sh
export OPTIMISED=yes

# Puts the source into the cache, and installs the build tools.
ansible-playbook tests/support/releases.yml
python scripts/patches.py fetch
exec pytest -q --durations 5 "$@" tests/performance
