#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# `make lab` and `make lab-down`: the test hosts, and the model that inventories/lab gives them (of random weights).
# Arguments go to tests/lab/lab.py: up [host …] | down | status | tools, which installs what hosts need here.
set -eu

cd "$(dirname "$0")/.."
action=${1:-up}
[ "$#" = 0 ] || shift
cache=${LLAMA_CPP_CLUSTER_CACHE:-${HOME:-/nonexistent}/.cache/llama_cpp_cluster}
export LLAMA_CPP_CLUSTER_CACHE="$cache"
python=.venv/bin/python
# Without .venv (`make clean`), a lab can be removed all the same.
[ -x "$python" ] || { python=python3; export PYTHONPATH=tests; }

[ "$action" = up ] || exec "$python" tests/lab/lab.py "$action" "$@"

# What the hosts have compiled is kept for their successors: builds for the CPU that they run on, so one folder for each.
cpu=$(grep -m 2 -E '^(model name|flags|Features)' /proc/cpuinfo | sha256sum | cut -c 1-12)
"$python" tests/lab/lab.py up "$@" --share "$cache/lab/ccache-$cpu"
# Its largest tensors are over 10 MiB, so that workers cache them.
model=$cache/lab/random-weights.gguf
[ -e "$model" ] || "$python" playbooks/files/random_model.py --layers 4 --width 2048 "$model"
