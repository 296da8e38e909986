#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# `make demo`: checks whether and how it can run here, makes .venv, then runs playbooks/demo.yml with MODEL, WORKERS and
# PROMPT from the environment. Arguments go to ansible-playbook as they are.
# `make serve` sets SERVE: the playbook prepares programs and model, while another one builds the chat page, and an API serves the model until
# Ctrl-C. With GROUPS=2 there are two APIs, each over WORKERS workers, behind one HAProxy.
# end_all.py runs this script, and ends every process of it when it ends.
set -eu

cd "$(dirname "$0")/.."
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

if [ -z "${ENDED_WITH_ALL:-}" ]; then
    python=$(scripts/bootstrap.sh python)
    ENDED_WITH_ALL=yes exec "$python" scripts/end_all.py scripts/demo.sh "$@"
fi
unset ENDED_WITH_ALL

# Report errors that take a second to find before downloading anything.
case ${WORKERS:-2} in
    [1-9] | 1[0-5]) ;;
    *) die "WORKERS is $WORKERS; give a number from 1 to 15 (llama.cpp takes at most 15 RPC devices)." ;;
esac
case ${GROUPS_WANTED:-1} in
    1) ;;
    [2-8])
        if [ ! -x /usr/sbin/haproxy ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
            echo "==> Installing haproxy, which stands before several groups"
            apt-get -qq update || :
            DEBIAN_FRONTEND=noninteractive apt-get -qqy install --no-install-recommends haproxy >/dev/null || :
        fi
        [ -x /usr/sbin/haproxy ] || die "several groups need HAProxy before them, and /usr/sbin/haproxy is not there: install the package haproxy, or leave out GROUPS."
        ;;
    *) die "GROUPS is $GROUPS_WANTED; give a number from 1 to 8." ;;
esac
if [ -n "${MODEL:-}" ] && [ "$MODEL" != random ]; then
    # A shell may not expand ~ after MODEL=.
    case $MODEL in \~/*) MODEL=$HOME/${MODEL#??} ;; /*) ;; *) MODEL=$PWD/$MODEL ;; esac
    [ -f "$MODEL" ] && [ -r "$MODEL" ] || die "MODEL is $MODEL, which is not a file that you can read; give the path of a GGUF file, or random."
    head -c 4 "$MODEL" | grep -q GGUF || die "MODEL is $MODEL, which is not a GGUF file (it does not begin with GGUF); give the path of one."
    export MODEL
fi

# .venv has cmake and ninja; only the compiler must come from the machine.
privileges=
if command -v c++ >/dev/null 2>&1 && command -v cc >/dev/null 2>&1; then
    privileges="-e llama_cpp_manage_packages=false"
elif [ "$(id -u)" = 0 ]; then
    :
elif ! command -v sudo >/dev/null 2>&1; then
    die "there is no C++ compiler and no sudo to install one with; ask an administrator for g++ (Debian, Ubuntu) or gcc-c++ (Fedora, Rocky)."
elif sudo -n true 2>/dev/null; then
    privileges="-e demo_become=true"
elif [ -t 0 ]; then
    privileges="-e demo_become=true --ask-become-pass"
else
    die "there is no C++ compiler, and sudo asks for a password but there is no terminal to type it: install g++, or run this from a terminal."
fi

scripts/bootstrap.sh run

# !unsafe: the values are not templates, whatever characters they have. JSON strings are YAML strings.
variables=$(.venv/bin/python - <<'PY'
import json, os, sys
names = {"MODEL": "demo_model", "WORKERS": "demo_workers", "PROMPT": "inference_prompt"}
found = {variable: os.environ[name] for name, variable in names.items() if os.environ.get(name)}
for name in names:
    try:
        os.environ.get(name, "").encode()
    except UnicodeEncodeError:
        sys.exit(f"error: {name} is not UTF-8 text.")
print("{" + ", ".join(f"{name}: !unsafe {json.dumps(value)}" for name, value in found.items()) + "}")
PY
)

cache=${LLAMA_CPP_CLUSTER_CACHE:-$HOME/.cache/llama_cpp_cluster}
folder=$cache/demo
mkdir -p "$folder/page"
# Only one run has this lock until it ends. With it, a claim on the build folder is that of a run that was interrupted.
exec 8>"$folder/.lock"
! flock --nonblock 8 || rm -f "$cache"/llama_cpp/*/build/*/.owner

PATH=$PWD/.venv/bin:$PATH
# Unbuffered, so that steps of a long build appear as they happen, also in a pipe.
export PATH ANSIBLE_CONFIG="$PWD/ansible.cfg" PYTHONUNBUFFERED=1
# demo_steps prints steps as they begin. `ANSIBLE_STDOUT_CALLBACK=default make demo` shows every task and its result.
export ANSIBLE_CALLBACK_PLUGINS="$PWD/playbooks/callback_plugins" ANSIBLE_STDOUT_CALLBACK="${ANSIBLE_STDOUT_CALLBACK:-demo_steps}"
if [ -z "${SERVE:-}" ]; then
    # shellcheck disable=SC2086 # several words
    exec ansible-playbook -e "$variables" "$@" $privileges playbooks/demo.yml
fi

rm -f "$folder/page.none"
{
    ansible-playbook -e "$variables" -e demo_page="$folder/page" "$@" playbooks/files/demo_page.yml </dev/null >"$folder/page.log" 2>&1 ||
        echo "it could not be built: see $folder/page.log" >"$folder/page.none"
} &
# shellcheck disable=SC2086 # several words
ansible-playbook -e "$variables" -e demo_serve=true "$@" $privileges playbooks/demo.yml
exec python playbooks/files/demo_api.py --bin="$folder/bin" --count="${WORKERS:-2}" --groups="${GROUPS_WANTED:-1}" --state="$folder/api" \
    --page="$folder/page" --model="$(readlink "$folder/model")"
