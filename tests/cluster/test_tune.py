# SPDX-License-Identifier: GPL-3.0-or-later
"""A sweep of playbook tune that restarts a worker: it serves with other threads meanwhile, and ends as it was.

tests/integration/test_tune.py checks that the playbook restarts none without being told.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from typing import TYPE_CHECKING

import pytest

from support.lab.hosts import ADDRESS, PORT, UNIT, ask, eventually, inventory_of, play, ssh, ssh_command

if TYPE_CHECKING:
    from pathlib import Path

# Prints the number of the worker's threads whenever it changes, until a line comes in.
WATCH = """
import glob, select, sys
seen, ended = None, False
while not ended:
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            words = open(path).read().split("\\0")
        except OSError:
            continue
        if words[0].endswith("/rpc-server") and "-t" in words and words[words.index("-t") + 1] != seen:
            seen = words[words.index("-t") + 1]
            print(seen, flush=True)
    ended = bool(select.select([sys.stdin], [], [], 0.2)[0])
"""
WORKER = "worker1"
ENDPOINT = f"{ADDRESS[WORKER]}:{PORT}"
# The worker cannot be started with three threads.
VARIABLES = {
    "rpc_server_device": "{{ 'GPU7' if rpc_server_threads | string == '3' else 'CPU' }}",
    "rpc_server_ready_timeout": 4,
}
SWEEP = {
    "tune_candidates": {"rpc_server_threads": [1, 3]},
    "tune_n_prompt": 16,
    "tune_n_gen": 2,
    "tune_repetitions": 2,
}


def serving() -> tuple[str, str, str]:
    """Return the process that serves, its command, and its unit, once the worker is ready."""
    eventually(lambda: ask("master", ENDPOINT) == {ENDPOINT: "ready"}, 30, f"{WORKER} is ready")
    pid = ssh(WORKER, "systemctl", "show", "--property=MainPID", "--value", UNIT).stdout.strip()
    command = ssh(WORKER, "cat", f"/proc/{pid}/cmdline").stdout
    return pid, command, ssh(WORKER, "cat", f"/etc/systemd/system/{UNIT}").stdout


@pytest.mark.long
def test_a_worker_is_measured_with_other_threads_and_ends_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "hosts.json").write_text(json.dumps({"llama_workers": {"hosts": {WORKER: VARIABLES}}}))
    before = serving()
    watch = [*ssh_command(WORKER), "sudo", "python3", "-u", "-c", shlex.quote(WATCH)]
    with subprocess.Popen(watch, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as watcher:
        assert watcher.stdout
        own = watcher.stdout.readline()
        given = json.dumps({**SWEEP, "tune_folder": str(tmp_path)})
        alone = inventory_of(tmp_path / "alone.yml", WORKER)
        done = play("tune", "-i", str(tmp_path / "hosts.json"), "-e", given, check=False, inventory=alone)
        seen = watcher.communicate("end\n", timeout=60)[0].split()
    after = serving()
    if own.strip() == "1":
        pytest.skip("a worker of one core has one thread, and no other number to try")
    assert done.returncode == 0, done.stdout
    assert (seen[0], seen[-1]) == ("1", own.strip())
    assert after[0] != before[0]
    assert after[1:] == before[1:]
    text = " ".join((tmp_path / "variables.yml").read_text().split())
    assert f"# rpc_server_threads 3 {WORKER} could not be started with other threads (see above)." in text
    assert text.count(" tokens/s (") >= len(("present", "1", "again")), text
