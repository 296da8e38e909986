#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# Converts the patches of llama.cpp to a git tree and back. docs/maintaining.md describes how.
#   scripts/patches.sh tree FOLDER [VERSION]    make a tree of the source of a version (the default one), with a commit for each patch
#   scripts/patches.sh export FOLDER [TO]       write the commits of such a tree as the patches of its version (or to folder TO)
#   scripts/patches.sh rebase TO [FOLDER]       try the default version's patches on version TO, or on the source in folder TO,
#                                               hunk by hunk; with FOLDER, also make a tree there with what fits
#   scripts/patches.sh fetch                    fetch the sources of all versions that have patches into the cache
set -eu

cd "$(dirname "$0")/.."
PATH=$PWD/.venv/bin:$PATH
PYTHONPATH=$PWD/.venv/collections
export PATH PYTHONPATH
exec python scripts/patches.py "$@"
