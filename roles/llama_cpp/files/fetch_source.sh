#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# Brings the archive of a requirement (in the standard input), which has the digest $2, to the file $1 on the controller, from the package
# index that pip is configured for. $3 is a Python that may have pip. The file is complete or missing. Prints "fetched" unless it was there
# and undamaged. Calls for the same file wait for each other.
set -eu
umask 022
file=$1 sha256=$2
part=${file%/*}/.${file##*/}.part
IFS= read -r requirement

mkdir -p "${file%/*}"
exec 9>"${file%/*}/.${file##*/}.lock"
flock 9
[ ! -e "$file" ] || [ "$(sha256sum <"$file")" != "$sha256  -" ] || exit 0
rm -rf "$part"
trap 'rm -rf "$part"' EXIT
mkdir "$part"
python=$(sh "${0%/*}/pip.sh" "$3")
printf '%s --hash=sha256:%s\n' "$requirement" "$sha256" >"$part/requirements.txt"
# pip runs no code of the package: it asks the stand-in for the package's build backend. It unpacks large files in TMPDIR.
LC_ALL=C TMPDIR=$part PYTHONPATH=${0%/*}/build_backend PYTHONDONTWRITEBYTECODE=1 \
    "$python" -m pip download --quiet --no-input --no-cache-dir --disable-pip-version-check --no-deps --no-binary :all: \
    --no-build-isolation --require-hashes --dest "$part/out" --requirement "$part/requirements.txt" 2>"$part/errors" || {
    sed -n '/./p' "$part/errors" | tail -n 1 >&2
    sed -n 's/^ *Got *\([0-9a-f]\{64\}\).*/it was \1/p' "$part/errors" >&2
    exit 1
}
mv "$part/out/"* "$file"
echo fetched
