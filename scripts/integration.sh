#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# `make test-integration`: tests with real llama.cpp processes and real Ansible runs on this machine, including the long tests
# that `make test` leaves out. Arguments go to pytest, as in `scripts/integration.sh -k firewall`.
set -eu

cd "$(dirname "$0")/.."
PATH=$PWD/.venv/bin:$PATH
export PATH ANSIBLE_CONFIG="$PWD/ansible.cfg"
cache=${LLAMA_CPP_CLUSTER_CACHE:-${HOME:-/nonexistent}/.cache/llama_cpp_cluster}

. scripts/compilers.sh
ansible-playbook tests/support/releases.yml
# The tests wait a lot, so there is one process more than processors.
processes=$(($(nproc) + 1))
[ "$processes" -lt 8 ] || processes=8
# The tests of one file run in one process, so that plays and services that they share run once.
exec pytest -q --durations 20 --dist loadscope -n "${TEST_PROCESSES:-$processes}" "$@" tests/integration tests/tooling/test_benchmark_runs.py
