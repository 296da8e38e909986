#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# `make test-kubernetes`: tests the image, and a group of its pods, on test hosts that this script makes and removes. There is no Kubernetes:
# a stand-in starts the pods as the manifests say. Arguments go to pytest, as in `scripts/kubernetes.sh -k killed`. Exit status 77: the test
# cannot run here; a message says why.
set -eu

cd "$(dirname "$0")/.."
if [ "$(id -u)" != 0 ]; then
    echo "Not run: pods on test hosts; it makes containers, which needs root: sudo make test-kubernetes" >&2
    exit 77
fi
if [ "$(uname -m)" != x86_64 ]; then
    echo "Not run: pods on test hosts; the image is for aarch64 as well, which is compiled on x86-64 alone here." >&2
    exit 77
fi
# A separate lab from that of `make lab`.
export LAB_NUMBER="${LAB_NUMBER:-120}"
cache=${LLAMA_CPP_CLUSTER_CACHE:-${HOME:-/nonexistent}/.cache/llama_cpp_cluster}
export LLAMA_CPP_CLUSTER_CACHE="$cache"
PATH=$PWD/.venv/bin:$PATH
export PATH ANSIBLE_CONFIG="$PWD/ansible.cfg"

# The programs of the other architecture are compiled here, and run in an emulator one by one.
. scripts/compilers.sh
# The tools that unpack an image (the lab installs mmdebstrap, which makes one).
missing=
for tool in skopeo umoci qemu-aarch64-static; do
    command -v "$tool" >/dev/null || missing="$missing $tool"
done
if [ -n "$missing" ]; then
    apt-get -qq update || :
    DEBIAN_FRONTEND=noninteractive apt-get -qqy install --no-install-recommends skopeo umoci qemu-user-static >/dev/null || {
        echo "Not run: pods on test hosts; these programs are not here, and apt-get could not install them:$missing" >&2
        exit 77
    }
fi

trap 'scripts/lab.sh down' EXIT
trap 'exit 130' INT TERM
# All hosts share this folder. It has the unpacked image and the model.
python tests/lab/lab.py up master worker1 worker3 worker4 worker5 worker6 outsider --share "$cache/lab/kubernetes"
mkdir -p "$cache/lab/kubernetes/models"
# x86-64 repacks the weights of this model, and some of them are large enough for the workers' caches.
model=$cache/lab/kubernetes/models/random-q4_0.gguf
[ -e "$model" ] || python - "$model" <<'EOF'
import sys
from pathlib import Path

from support.quantised_models import Type, write_quantised

partial, _tokens = write_quantised(Path(f"{sys.argv[1]}.partial"), (Type.Q4_0,), layers=3, width=4096)
partial.rename(sys.argv[1])
EOF
pytest -v --durations 10 "$@" tests/kubernetes
