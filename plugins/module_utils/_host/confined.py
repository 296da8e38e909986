# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: the command that runs a program from outside without root's privileges, network and files.

util-linux and coreutils do it, so a host needs no systemd. An account other than root runs the program as itself.
"""

from __future__ import annotations

from typing import Sequence

# Both scripts end with 126 if they cannot start the program, as shells do.
# $1 the script for inside, $2 how many paths follow, the paths, the command
_START = """
PATH=$PATH:/usr/sbin:/sbin inside=$1; shift
if [ "$(id -u)" != 0 ]; then shift $(($1 + 1)); exec "$@"; fi
set -- unshare --mount --net --ipc --pid --fork --kill-child --mount-proc sh -c "$inside" sh "$@"
if unshare --mount --net --ipc --pid --fork --kill-child --mount-proc true; then exec "$@"; fi
echo "root may not make namespaces here: use another account, or give the container CAP_SYS_ADMIN" >&2
exit 126
"""

# The program gets a root folder of its own, because it may not pass root's home on its way to the paths.
# This shell stays, because signals do not end the first process of a PID namespace.
_INSIDE = """
why="root may not mount folders here: use another account, or give the container CAP_SYS_ADMIN"
trap 'echo "$why" >&2; exit 126' EXIT
set -e
mount -t tmpfs -o mode=755 tmpfs /run
cd /run
for top in bin dev etc lib lib32 lib64 proc sbin sys usr; do
    if [ -L "/$top" ]; then cp -P "/$top" .; elif [ -d "/$top" ]; then mkdir "$top"; mount --rbind "/$top" "$top"; fi
done
[ ! -d dev/shm ] || mount -t tmpfs tmpfs dev/shm
mkdir -m 1777 tmp
export HOME=/tmp
nobody="chroot . setpriv --reuid=65534 --regid=65534 --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all"
left=$1; shift
while [ "$left" -gt 0 ]; do
    if [ -d "$1" ]; then mkdir -p ".$1"
    else
        [ -e "$1" ] || { : >"$1"; chown 65534 "$1"; }
        mkdir -p ".${1%/*}"
        [ -e ".$1" ] || : >".$1"
    fi
    mount --rbind "$1" ".$1"
    why="the account nobody may not read $1: let every account read it"
    $nobody test -r "$1"
    shift; left=$((left - 1))
done
trap - EXIT
set +e
$nobody "$@"
exit
"""


def confined(command: Sequence[str], paths: Sequence[str]) -> list[str]:
    """Return a command that runs the given one. If root runs it, the program sees only the system and these paths.

    It may write a file among the paths that does not exist yet. If it cannot be confined, it is not started: the exit
    status is 126, and the last line of the error output says why.
    """
    return ["sh", "-c", _START, "sh", _INSIDE, str(len(paths)), *paths, *command]
