#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# `make docs`: builds the site in build/docs/html, from the pages and from the specs of roles and plugins. The site needs no
# network. `scripts/docs.sh test` also checks it in a browser. Further arguments go to pytest.
set -eu

cd "$(dirname "$0")/.."
cache=${LLAMA_CPP_CLUSTER_CACHE:-${HOME:-/nonexistent}/.cache/llama_cpp_cluster}
export LLAMA_CPP_CLUSTER_CACHE="$cache"
PATH=$PWD/.venv/bin:$PATH
export PATH ANSIBLE_CONFIG="$PWD/ansible.cfg" ANSIBLE_HOME="$cache/ansible" NO_COLOR=1 PYTHONDONTWRITEBYTECODE=1

. scripts/tools.sh

work=$PWD/build/docs
mkdir -p "$work"
# Pages that no longer exist must not stay in the site.
rm -rf "$work/pages" "$work/html"
specs=$work/pages/reference/collection
mkdir -p "$specs"
"$tools/bin/python" scripts/site/pages.py collection "$work/collections/ansible_collections/llama_cpp/cluster"
ANSIBLE_COLLECTIONS_PATH=$work/collections "$tools/bin/antsibull-docs" collection --use-current --squash-hierarchy \
    --fail-on-error --no-add-antsibull-docs-version --dest-dir "$specs" llama_cpp.cluster >"$work/antsibull-docs.log" 2>&1 || {
    cat "$work/antsibull-docs.log" >&2
    exit 1
}
"$tools/bin/python" scripts/site/pages.py pages "$work/pages"
"$tools/bin/sphinx-build" --quiet --fail-on-warning --keep-going --jobs auto --builder html \
    --conf-dir scripts/site --doctree-dir "$work/doctrees" "$work/pages" "$work/html"
echo "The site is $work/html/index.html"

if [ "${1:-}" = test ]; then
    shift
    SITE=$work/html pytest -q --no-header tests/site "$@"
fi
