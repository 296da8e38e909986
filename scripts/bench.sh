#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# `make bench`: runs every benchmark in turn, or those that the arguments name, as in `scripts/bench.sh rollout`. If one misses
# a target, the next ones still run. Exit status 1: a benchmark missed a target or failed. 77: a benchmark could not run here,
# and its message says why.
set -eu

cd "$(dirname "$0")/.."
PATH=$PWD/.venv/bin:$PATH
export PATH ANSIBLE_CONFIG="$PWD/ansible.cfg"
[ "$#" != 0 ] || set -- throughput upstream serving load restart rollout site_again

# Builds the releases that the benchmarks on loopback run. If they are built already, this takes a second.
case "$*" in rollout | site_again) ;; *) ansible-playbook tests/support/releases.yml -e for_benchmarks=true ;; esac
outcome=0
for name; do
    [ -e "tests/benchmarks/$name.py" ] || { echo "error: there is no benchmark $name in tests/benchmarks." >&2; exit 1; }
    printf '\n==> %s\n' "$name"
    status=0
    python "tests/benchmarks/$name.py" || status=$?
    [ "$status" = 0 ] || [ "$outcome" = 1 ] || { [ "$status" = 77 ] && outcome=77; } || outcome=1
done
exit "$outcome"
