#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# Prints the first of the Pythons $1 and python3 that has pip.
for python in "$1" python3; do
    ! "$python" -m pip --version >/dev/null 2>&1 || { echo "$python" && exit; }
done
echo "no pip was found on the controller: install python3-pip, or give an archive as the source" >&2
exit 1
