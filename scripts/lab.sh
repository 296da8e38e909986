#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# `make lab`: makes the test hosts, and the model of random weights that inventories/lab uses. `scripts/lab.sh down` removes
# the hosts. Arguments go to tests/lab/lab.py: up [host …] | down | status | tools. tools installs what this
# machine needs to make hosts.
set -eu

cd "$(dirname "$0")/.."
action=${1:-up}
[ "$#" = 0 ] || shift
cache=${LLAMA_CPP_CLUSTER_CACHE:-${HOME:-/nonexistent}/.cache/llama_cpp_cluster}
export LLAMA_CPP_CLUSTER_CACHE="$cache"
python=.venv/bin/python
# Without .venv (after `make clean`), a lab can still be removed.
[ -x "$python" ] || { python=python3; export PYTHONPATH=tests; }

[ "$action" = up ] || exec "$python" tests/lab/lab.py "$action" "$@"

# Keep what the hosts compile for later hosts, together with what this machine compiles (compilers.sh): it is the same if
# the compiler is.
"$python" tests/lab/lab.py up "$@" --share "$cache/ccache"
# The model's largest tensors are over 10 MiB, so that workers cache them.
model=$cache/lab/random-weights.gguf
[ -e "$model" ] || "$python" playbooks/files/random_model.py --layers 4 --width 2048 "$model"
