#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# `make test-NAME`: runs the molecule scenario NAME (extensions/molecule) on hosts that it makes, tests and removes. The next
# argument is an action of molecule, as in `scripts/molecule.sh serve converge`; without one the whole test runs. PYTEST_ADDOPTS
# selects tests, as in `PYTEST_ADDOPTS="-k killed" make test-serve`. Exit status 77: the test cannot run here; a message says why.
set -eu

cd "$(dirname "$0")/.."
scenario=${1:?name a scenario of extensions/molecule}
shift
action=${1:-test}
[ "$#" = 0 ] || shift
not_run() {
    echo "Not run: the molecule scenario $scenario; $1" >&2
    exit 77
}
# A lab for each, and another one for `make lab`.
case $scenario in
    cluster) number=100 ;;
    aarch64) number=101 ;;
    faults) number=104 ;;
    upgrade) number=105 ;;
    fuzz) number=106 ;;
    serve) number=107 ;;
    gateway) number=109 ;;
    tunnel) number=119 ;;
    kubernetes) number=120 ;;
    pages) number=121 ;;
    *) echo "error: there is no tier $scenario; make help lists them." >&2; exit 1 ;;
esac
[ "$(id -u)" = 0 ] || not_run "it makes hosts and a bridge, which needs root: sudo make test-$scenario"
cache=${LLAMA_CPP_CLUSTER_CACHE:-${HOME:-/nonexistent}/.cache/llama_cpp_cluster}
export LAB_NUMBER="${LAB_NUMBER:-$number}" LAB_SCENARIO="$scenario" LLAMA_CPP_CLUSTER_CACHE="$cache"
export MOLECULE_PROJECT_DIRECTORY="$PWD" MOLECULE_EPHEMERAL_DIRECTORY="$cache/molecule/$LAB_NUMBER" PYTHONUNBUFFERED=1
export AARCH64_INVENTORY="${AARCH64_INVENTORY:-lab_aarch64}" AARCH64_SECOND_RUN=idempotence
PATH=$PWD/.venv/bin:$PATH

packages=
case $scenario in
    aarch64)
        if [ "$(uname -m)" != aarch64 ]; then
            command -v qemu-system-aarch64 >/dev/null || command -v apt-get >/dev/null ||
                not_run "this machine is no aarch64 and has no qemu-system-aarch64, nor apt-get to install it with: install QEMU"
            echo "The aarch64 hosts are emulated (QEMU) on this $(uname -m) machine: what they compute is real, how fast says nothing."
        fi
        # `make test` has the short form: one Arm class, nothing compiled on emulated hosts, and no second run of the playbook.
        # Molecule has no step that does nothing. `syntax` takes two seconds.
        if [ "$AARCH64_INVENTORY" = lab_aarch64 ]; then packages=qemu-user-static; else AARCH64_SECOND_RUN=syntax; fi
        ;;
    kubernetes)
        [ "$(uname -m)" = x86_64 ] || not_run "the image is for aarch64 as well, which is compiled on x86-64 alone here"
        packages="skopeo umoci qemu-user-static"
        ;;
esac
. scripts/compilers.sh

# Two runs at the same time would remove each other's hosts.
mkdir -p "$cache/molecule"
exec 9>"$cache/molecule/$LAB_NUMBER.lock"
flock -n 9 || { echo "error: a scenario already runs on lab $LAB_NUMBER; wait for it, or set LAB_NUMBER." >&2; exit 1; }
# Remove the state of a killed run, which molecule would believe.
if [ "$action" = test ] || ! scripts/lab.sh status >/dev/null; then
    rm -rf "$MOLECULE_EPHEMERAL_DIRECTORY"
fi
# Plain lines of any width, for logs and terminals.
export PATH NO_COLOR=1 ANSIBLE_NOCOLOR=1
# Molecule alone would leave its child processes running, so the signal goes to all of its session. A test that is interrupted leaves no hosts.
interrupted='' status=0
trap 'interrupted=yes; kill -s INT -- "-$molecule" 2>/dev/null || :' INT TERM HUP
env --default-signal=INT setsid molecule "$action" --scenario-name "$scenario" --no-command-borders "$@" &
molecule=$!
wait "$molecule" || status=$?
if [ -n "$interrupted" ]; then
    wait "$molecule" || :
    case "$action $*" in *--destroy=never*) ;; test*) scripts/lab.sh down ;; esac
fi
exit "$status"
