#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# `make test-aarch64`: runs the molecule scenario "aarch64". Its hosts are emulated if this machine has another architecture.
# Arguments go to molecule, as in `scripts/aarch64.sh converge`; without arguments the whole test runs.
# AARCH64_INVENTORY=lab_aarch64/hosts.yml selects the short form for `make test`: one Arm class, nothing compiled on
# emulated hosts, and no second run of the playbook. Exit status 77: the test cannot run here; a message says why.
set -eu

cd "$(dirname "$0")/.."
not_run() {
    echo "Not run: the cluster of aarch64 hosts (molecule scenario \"aarch64\"); $1" >&2
    exit 77
}
[ "$(id -u)" = 0 ] || not_run "it makes hosts and a bridge, which needs root: sudo make test-aarch64"
if [ "$(uname -m)" != aarch64 ]; then
    command -v qemu-system-aarch64 >/dev/null || command -v apt-get >/dev/null ||
        not_run "this machine is no aarch64 and has no qemu-system-aarch64, nor apt-get to install it with: install QEMU"
    echo "The aarch64 hosts are emulated (QEMU) on this $(uname -m) machine: what they compute is real, how fast says nothing."
fi

# A separate lab from those of `make lab` and `make test-cluster`.
export LAB_NUMBER="${LAB_NUMBER:-101}" AARCH64_INVENTORY="${AARCH64_INVENTORY:-lab_aarch64}"
cache=${LLAMA_CPP_CLUSTER_CACHE:-${HOME:-/nonexistent}/.cache/llama_cpp_cluster}
export LLAMA_CPP_CLUSTER_CACHE="$cache" MOLECULE_PROJECT_DIRECTORY="$PWD" AARCH64_SECOND_RUN=idempotence
# Molecule has no step that does nothing. `syntax` takes two seconds.
[ "$AARCH64_INVENTORY" = lab_aarch64 ] || AARCH64_SECOND_RUN=syntax
PATH=$PWD/.venv/bin:$PATH
export PATH PYTHONUNBUFFERED=1 MOLECULE_EPHEMERAL_DIRECTORY="$cache/molecule/$LAB_NUMBER"

. scripts/compilers.sh
# One test of the long form runs a compiler of the other architecture. (tests/lab and the role install what they need.)
if [ "$AARCH64_INVENTORY" = lab_aarch64 ] && [ "$(uname -m)" != aarch64 ] && ! command -v qemu-aarch64-static >/dev/null && command -v apt-get >/dev/null; then
    apt-get -qq update || :
    DEBIAN_FRONTEND=noninteractive apt-get -qqy install --no-install-recommends qemu-user-static >/dev/null
fi

# Two runs at the same time would remove each other's hosts.
mkdir -p "$cache/molecule"
exec 9>"$cache/molecule/$LAB_NUMBER.lock"
flock -n 9 || { echo "error: the scenario already runs on lab $LAB_NUMBER; wait for it, or set LAB_NUMBER." >&2; exit 1; }

action=${1:-test}
[ "$#" = 0 ] || shift
# Remove the state of a killed run, which molecule would believe.
[ "$action" != test ] || rm -rf "$MOLECULE_EPHEMERAL_DIRECTORY"
# Plain lines of any width, for logs and terminals.
NO_COLOR=1 ANSIBLE_NOCOLOR=1 exec python scripts/steps.py molecule "$action" --scenario-name aarch64 --no-command-borders "$@"
