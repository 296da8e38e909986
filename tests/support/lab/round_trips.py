# SPDX-License-Identifier: GPL-3.0-or-later
"""Count how often Ansible starts a program on each host over SSH, which takes seconds each time on a slow host."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

# The host is the last word but one, and the command is the last.
_COUNTED = """#!/bin/sh
for word; do host=$last last=$word; done
printf '%s\\n' "$host" >>"$ROUND_TRIPS"
exec ssh "$@"
"""


def counted(folder: Path) -> dict[str, str]:
    """Return the environment in which Ansible counts; begin a new count."""
    program, log = folder / "counted-ssh", folder / "round-trips"
    program.write_text(_COUNTED)
    program.chmod(0o755)
    log.write_text("")
    return {"ANSIBLE_SSH_EXECUTABLE": str(program), "ROUND_TRIPS": str(log)}


def round_trips(folder: Path, ssh_config: Path) -> dict[str, int]:
    """Return the count for each host, by its name."""
    known = re.findall(r"^Host (\S+)\n  HostName (\S+)$", ssh_config.read_text(), re.MULTILINE)
    names = {address: name for name, address in known}
    return dict(sorted(Counter(names[line] for line in (folder / "round-trips").read_text().split()).items()))
