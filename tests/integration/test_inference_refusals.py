# SPDX-License-Identifier: GPL-3.0-or-later
"""A run that ends because a worker refused a request: the role names the worker and what it refused.

`journalctl` is a stand-in that prints what a worker's patch rpc-safety logs.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

from support.tree import COLLECTION, run

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

# It prints the lines that a test has written.
JOURNALCTL = r"""#!/bin/sh
printf '%s\n' "$*" >>"{folder}/asked"
[ -e "{folder}/lines" ] && cat "{folder}/lines"
"""
PLAY = f"""
- hosts: master
  gather_facts: false
  tasks:
    - ansible.builtin.include_role: {{name: {COLLECTION}.inference, tasks_from: refusals}}
    - ansible.builtin.debug:
        msg: "{{{{ {{'refused': __inference_refused, 'message': inference_outcome.failure.message}} | to_json }}}}"
"""
LOST = "A worker broke the connection during the run and all answer again."
REFUSED = "operation VIEW: a tensor that is not within its buffer"


def said_after(folder: Path, monkeypatch: pytest.MonkeyPatch, lines: str) -> dict[str, object]:
    """Return what the role makes of a lost worker, if each worker's journal has these lines."""
    (folder / "bin").mkdir()
    program = folder / "bin/journalctl"
    program.write_text(JOURNALCTL.format(folder=folder))
    program.chmod(0o755)
    if lines:
        (folder / "lines").write_text(lines)
    monkeypatch.setenv("PATH", f"{folder}/bin:{os.environ['PATH']}")
    outcome = {"wall_time_ms": 91234.5, "failure": {"kind": "worker_lost", "endpoint": None, "message": LOST}}
    given = {"inference_hosts": ["worker1"], "ansible_python_interpreter": sys.executable}
    (folder / "variables.json").write_text(json.dumps(given))
    # A variable of the command line would win against what the role sets.
    fact = json.dumps({"inference_outcome": outcome})
    play = PLAY.replace("tasks:", f"tasks:\n    - ansible.builtin.set_fact: {fact}", 1)
    (folder / "play.yml").write_text(play)
    done = run(
        "ansible-playbook", "-i", "master,worker1,", "-c", "local", "-e", "@variables.json", "play.yml", cwd=folder
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "--since=-101s --unit=llama-rpc-server@* --grep=" in (folder / "asked").read_text()
    found = json.loads(json.loads(done.stdout.rpartition('"msg": ')[2].partition("\n")[0]))
    assert isinstance(found, dict)
    return found


def test_what_a_worker_refused_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = f"[rpc_check] refused: a graph\x1b[2J\n[rpc_check] refused: {REFUSED}\n"
    found = said_after(tmp_path, monkeypatch, lines)
    refused = f"worker1 refused a request: {REFUSED}. A new run would end in the same way."
    assert found == {"refused": True, "message": f"{LOST} {refused}"}


def test_without_a_refusal_the_failure_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert said_after(tmp_path, monkeypatch, "") == {"refused": False, "message": LOST}
