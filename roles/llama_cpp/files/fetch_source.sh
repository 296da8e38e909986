#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# Brings a source of llama.cpp to the file $1 on the controller, with pip or git. The file is complete or missing. Prints "fetched"
# unless it was there and undamaged. Calls for the same file wait for each other.
#   FILE pip SHA256 PYTHON   the archive of the requirement in the standard input, from the package index that pip is configured for
#   FILE git COMMIT          the tree of a commit of the repository whose URL is in the standard input. A name and password in the
#                            URL are in no argument of a program, which other users could read.
set -eu
umask 022
file=$1 how=$2 pin=$3
part=${file%/*}/.${file##*/}.part
IFS= read -r what

fail() {
    echo "$1" >&2
    exit 1
}

by_pip() {
    for python in "$1" python3 ''; do
        if "$python" -m pip --version >/dev/null 2>&1; then break; fi
    done
    [ "$python" ] || fail "no pip was found on the controller: install python3-pip, or give an archive as the source"
    printf '%s --hash=sha256:%s\n' "$what" "$pin" >"$part/requirements.txt"
    # pip runs no code of the package: it asks the stand-in for the package's build backend. It unpacks large files in TMPDIR.
    LC_ALL=C TMPDIR=$part PYTHONPATH=${0%/*}/build_backend PYTHONDONTWRITEBYTECODE=1 \
        "$python" -m pip download --quiet --no-input --no-cache-dir --disable-pip-version-check --no-deps --no-binary :all: \
        --no-build-isolation --require-hashes --dest "$part/out" --requirement "$part/requirements.txt" 2>"$part/errors" || {
        sed -n '/./p' "$part/errors" | tail -n 1 >&2
        sed -n 's/^ *Got *\([0-9a-f]\{64\}\).*/it was \1/p' "$part/errors" >&2
        exit 1
    }
    mv "$part/out/"* "$file"
}

by_git() {
    export GIT_TERMINAL_PROMPT=0 GIT_DIR="$part/git" LC_ALL=C LOGIN="$part/login"
    git init --quiet --bare "$GIT_DIR"
    scheme=${what%%://*}
    place=${what#*://}
    place=${place%%[/?#]*}
    case $scheme:$place in
        http:*@* | https:*@*)
            login=${place%@*}
            case $login in *:*) ;; *) login=$login: ;; esac
            (umask 077 && printf '%s://%s@%s\n' "$scheme" "$login" "${place##*@}" >"$LOGIN")
            what=$scheme://${place##*@}${what#*://"$place"}
            # The first, empty helper takes away those of the user's settings.
            git config credential.helper ''
            # shellcheck disable=SC2016 # for the shell of git
            git config --add credential.helper 'store --file="$LOGIN"'
            ;;
    esac
    git fetch --quiet --no-tags --depth=1 -- "$what" "$pin"
    [ "$(git rev-parse --verify 'FETCH_HEAD^{commit}')" = "$pin" ] || fail "another commit came"
    git fsck --no-dangling --no-progress
    # The user's own setting of tar.umask would change the bytes.
    git -c tar.umask=0022 archive --format=tar -o "$part/archive" "$pin"
    sha256sum <"$part/archive" >"$file.sha256"
    mv "$part/archive" "$file"
}

mkdir -p "${file%/*}"
exec 9>"${file%/*}/.${file##*/}.lock"
flock 9
# The commit pins what git brings. Its digest is kept to notice damage.
expected="$pin  -"
[ "$how" = pip ] || expected=$(cat "$file.sha256" 2>/dev/null) || expected=
[ ! -e "$file" ] || [ "$(sha256sum <"$file")" != "$expected" ] || exit 0
rm -rf "$part"
trap 'rm -rf "$part"' EXIT
mkdir "$part"
"by_$how" "${4:-}"
echo fetched
