#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# `make test-pages`: runs the blocks of README and docs/start as they stand, on this machine and on test hosts that this script makes
# and removes. Arguments go to pytest, as in `scripts/pages.sh -k readme`. Exit status 77: the test cannot run here; a message says why.
set -eu

cd "$(dirname "$0")/.."
if [ "$(id -u)" != 0 ]; then
    echo "Not run: the pages on test hosts; it makes containers, which needs root: sudo make test-pages" >&2
    exit 77
fi
# A separate lab from that of `make lab`.
export LAB_NUMBER="${LAB_NUMBER:-121}"
PATH=$PWD/.venv/bin:$PATH
export PATH ANSIBLE_CONFIG="$PWD/ansible.cfg"
cache=${LLAMA_CPP_CLUSTER_CACHE:-${HOME:-/nonexistent}/.cache/llama_cpp_cluster}

. scripts/compilers.sh
trap 'scripts/lab.sh down' EXIT
trap 'exit 130' INT TERM
scripts/lab.sh up master worker1 worker2
pytest -v --durations 10 "$@" tests/pages
