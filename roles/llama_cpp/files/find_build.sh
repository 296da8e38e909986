#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# Prints the requirement of the package xllamacpp whose version ends in the number of llama.cpp's build $2 (b11434), or that of the newest if
# $2 is empty. It takes an archive in the folder $1, or else asks the package index that pip is configured for. $3 is a Python that may have pip.
set -eu
folder=$1 number=${2#b}
for archive in "$folder"/xllamacpp-*."$number".tar.gz; do
    version=${archive##*/xllamacpp-}
    [ ! -e "$archive" ] || { echo "xllamacpp==${version%.tar.gz}" && exit; }
done
python=$(sh "${0%/*}/pip.sh" "$3")
listed=$("$python" -m pip index versions xllamacpp --no-input --disable-pip-version-check 2>&1) || {
    printf '%s' "$listed" | tail -n 1 >&2
    exit 1
}
versions=$(printf '%s\n' "$listed" | sed -n 's/^Available versions: //p' | tr -d ' ' | tr , '\n')
version=$(printf '%s\n' "$versions" | grep -m 1 "${number:+\.$number\$}") || {
    echo "the package xllamacpp has $(printf '%s\n' "$versions" | sed -n 's/.*\./b/p' | head -n 6 | paste -sd ' '), not b$number" >&2
    exit 1
}
echo "xllamacpp==$version"
