# SPDX-License-Identifier: GPL-3.0-or-later
"""Each program that Ansible starts over SSH is counted for its host."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from support.lab.round_trips import counted, round_trips


def test_each_program_over_ssh_is_counted_for_its_host(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "ssh").write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    (programs / "ssh").chmod(0o755)
    config = tmp_path / "ssh_config"
    config.write_text("Host master\n  HostName 10.87.0.10\nHost worker1\n  HostName 10.87.0.11\nHost *\n  User ops\n")
    environment = {**os.environ, **counted(tmp_path), "PATH": f"{programs}:{os.environ['PATH']}"}
    for address in ("10.87.0.11", "10.87.0.10", "10.87.0.11"):
        command = [environment["ANSIBLE_SSH_EXECUTABLE"], "-o", "User=a b", address, "sh -c 'echo 10.87.0.10'"]
        said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        assert said == f"-o|User=a b|{address}|sh -c 'echo 10.87.0.10'|"
    assert round_trips(tmp_path, config) == {"master": 1, "worker1": 2}
