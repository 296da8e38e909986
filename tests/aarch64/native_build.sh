#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# Compiles the worker inside a Debian arm64 system with that system's own compiler, and starts it. Runs in namespaces of
# its own, so that no other process sees its mounts and its binfmt registration.
#   native_build.sh FOLDER PORT: FOLDER has root/ (the system), source/ (llama.cpp), build/ and cpuinfo
set -eu

folder=$1 port=$2
root=$folder/root
if [ "$(uname -m)" != aarch64 ]; then
    [ -x /usr/bin/qemu-aarch64-static ] || { echo "there is no /usr/bin/qemu-aarch64-static: install qemu-user-static" >&2; exit 1; }
    # Start programs of the other architecture through QEMU. The kernel recognises them by how their files begin.
    mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
    printf '%s' ':qemu-aarch64:M:0:\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00:\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:/usr/bin/qemu-aarch64-static:F' \
        >/proc/sys/fs/binfmt_misc/register
    export QEMU_CPU=neoverse-n1
fi
mkdir -p "$root/source" "$root/build"
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
# QEMU shows programs this machine's processor instead of the emulated one.
[ ! -e "$folder/cpuinfo" ] || mount --bind "$folder/cpuinfo" "$root/proc/cpuinfo"
mount --bind "$folder/source" "$root/source"
mount --bind "$folder/build" "$root/build"

# Build without optimisation and without two large, optional files of kernels: under emulation the rest takes minutes.
PATH=/usr/bin:/usr/sbin LC_ALL=C GIT_DIR=/build/no-repository exec chroot "$root" /usr/bin/dash -eus "$port" <<'INSIDE'
echo "machine: $(uname -m)"
echo "compiler: $(gcc --version | head -n 1)"
[ -e /build/build.ninja ] || cmake -G Ninja -S /source -B /build -DCMAKE_BUILD_TYPE=None -DCMAKE_C_FLAGS=-O0 -DCMAKE_CXX_FLAGS=-O0 \
    -DBUILD_SHARED_LIBS=OFF -DGGML_NATIVE=ON -DGGML_RPC=ON -DGGML_RPC_RDMA=OFF -DGGML_OPENMP=OFF -DGGML_CCACHE=OFF \
    -DGGML_LLAMAFILE=OFF -DGGML_CPU_REPACK=OFF -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_UI=OFF \
    -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF \
    -DLLAMA_BUILD_APP=OFF -DFETCHCONTENT_FULLY_DISCONNECTED=ON -DLLAMA_BUILD_NUMBER=0 -DLLAMA_BUILD_COMMIT=0 \
    >/build/configure.log 2>&1 || { tail -n 20 /build/configure.log; exit 1; }
grep -o "ARM detected flags: .*" /build/configure.log
rm -f /build/bin/ggml-rpc-server $(find /build -name "ggml-threading.cpp.o")
ninja -C /build ggml-rpc-server >/build/build.log 2>&1 || { tail -n 20 /build/build.log; exit 1; }
echo "compiled now: $(grep -c "Building C" /build/build.log)"
echo "program: $(od -An -j18 -N2 -tu2 /build/bin/ggml-rpc-server)"
/build/bin/ggml-rpc-server -H 127.0.0.1 -p "$1" -t 1 -d CPU </dev/null
INSIDE
