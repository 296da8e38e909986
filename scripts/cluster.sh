#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# `make test-cluster`: runs the molecule scenario "cluster" on hosts that it makes, tests and removes. Arguments go to
# molecule, as in `scripts/cluster.sh converge`; without arguments the whole test runs. Exit status 77: the test cannot run
# here; a message says why.
set -eu

cd "$(dirname "$0")/.."
if [ "$(id -u)" != 0 ]; then
    echo "Not run: the cluster on test hosts (molecule scenario \"cluster\"); it makes containers, which needs root: sudo make test-cluster" >&2
    exit 77
fi

# A separate lab from that of `make lab`.
export LAB_NUMBER="${LAB_NUMBER:-100}"
cache=${LLAMA_CPP_CLUSTER_CACHE:-${HOME:-/nonexistent}/.cache/llama_cpp_cluster}
export LLAMA_CPP_CLUSTER_CACHE="$cache" MOLECULE_PROJECT_DIRECTORY="$PWD"
PATH=$PWD/.venv/bin:$PATH
export PATH PYTHONUNBUFFERED=1 MOLECULE_EPHEMERAL_DIRECTORY="$cache/molecule/$LAB_NUMBER"

# Two runs at the same time would remove each other's hosts.
mkdir -p "$cache/molecule"
exec 9>"$cache/molecule/$LAB_NUMBER.lock"
flock -n 9 || { echo "error: the scenario already runs on lab $LAB_NUMBER; wait for it, or set LAB_NUMBER." >&2; exit 1; }

action=${1:-test}
[ "$#" = 0 ] || shift
# Remove the state of a killed run, which molecule would believe.
if [ "$action" = test ] || ! scripts/lab.sh status >/dev/null; then
    rm -rf "$MOLECULE_EPHEMERAL_DIRECTORY"
fi
# Plain lines of any width, for logs and terminals.
NO_COLOR=1 ANSIBLE_NOCOLOR=1 exec python scripts/steps.py molecule "$action" --scenario-name cluster --no-command-borders "$@"
