# shellcheck shell=sh
# SPDX-License-Identifier: GPL-3.0-or-later
# Other scripts source this file. Sets $python to the first of $own and python3 that has pip.
for python in "${own:?}" python3 ''; do
    if "$python" -m pip --version >/dev/null 2>&1; then break; fi
done
[ "$python" ] || {
    echo "no pip was found on the controller: install python3-pip, or give an archive as the source" >&2
    exit 1
}
