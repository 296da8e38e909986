#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# `make test-aarch64`: the molecule scenario "aarch64", whose hosts are emulated where this machine is of another
# architecture. Arguments go to molecule, as in `scripts/aarch64.sh converge`; without any it is the whole test.
# AARCH64_INVENTORY=lab_aarch64/hosts.yml is the short form that `make test` has: one Arm class, nothing compiled on
# emulated hosts, and no second run of the playbook. Exit status 77: could not run here, and says why.
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

# A lab of its own, beside those of `make lab` and `make test-cluster`.
export LAB_NUMBER="${LAB_NUMBER:-101}" AARCH64_INVENTORY="${AARCH64_INVENTORY:-lab_aarch64}"
cache=${LLAMA_CPP_CLUSTER_CACHE:-${HOME:-/nonexistent}/.cache/llama_cpp_cluster}
export LLAMA_CPP_CLUSTER_CACHE="$cache" MOLECULE_PROJECT_DIRECTORY="$PWD" AARCH64_SECOND_RUN=idempotence
# Molecule has no step that does nothing; this one takes two seconds.
[ "$AARCH64_INVENTORY" = lab_aarch64 ] || AARCH64_SECOND_RUN=syntax
PATH=$PWD/.venv/bin:$PATH
export PATH PYTHONUNBUFFERED=1 MOLECULE_EPHEMERAL_DIRECTORY="$cache/molecule/$LAB_NUMBER"

. scripts/compilers.sh
# One test of the long form runs a compiler of the other architecture. (tests/lab and the role install what they need.)
if [ "$AARCH64_INVENTORY" = lab_aarch64 ] && [ "$(uname -m)" != aarch64 ] && ! command -v qemu-aarch64-static >/dev/null && command -v apt-get >/dev/null; then
    apt-get -qq update || :
    DEBIAN_FRONTEND=noninteractive apt-get -qqy install --no-install-recommends qemu-user-static >/dev/null
fi

# Two at a time would take each other's hosts away.
mkdir -p "$cache/molecule"
exec 9>"$cache/molecule/$LAB_NUMBER.lock"
flock -n 9 || { echo "error: the scenario already runs on lab $LAB_NUMBER; wait for it, or set LAB_NUMBER." >&2; exit 1; }

action=${1:-test}
[ "$#" = 0 ] || shift
# What a killed run believed to be there.
[ "$action" != test ] || rm -rf "$MOLECULE_EPHEMERAL_DIRECTORY"
# Plain lines, however wide, for a log as for a terminal.
NO_COLOR=1 ANSIBLE_NOCOLOR=1 exec python scripts/steps.py molecule "$action" --scenario-name aarch64 --no-command-borders "$@"
