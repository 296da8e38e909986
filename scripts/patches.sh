#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# The patches of llama.cpp as a git tree, and back; what it takes is told in docs/development.md.
#   scripts/patches.sh tree FOLDER [VERSION]    the source of a version (the default one) with a commit for each of its patches
#   scripts/patches.sh export FOLDER [TO]       the commits of such a tree become the patches of its version (or files in folder TO)
#   scripts/patches.sh rebase TO [FOLDER]       what of the default version's patches fits version TO, or the source in folder TO,
#                                               hunk by hunk; with FOLDER, also a tree there with what fits
#   scripts/patches.sh fetch                    the sources of all versions that have patches are in the cache
set -eu

cd "$(dirname "$0")/.."
PATH=$PWD/.venv/bin:$PATH
PYTHONPATH=$PWD/.venv/collections
export PATH PYTHONPATH
exec python scripts/patches.py "$@"
