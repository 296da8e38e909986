# SPDX-License-Identifier: GPL-3.0-or-later
"""What is shown while a role waits: whole lines at a bounded rate for people, in a pipe too, and none for programs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.harness import HANG_S, ROOT
from support.hub_stand_in import running_hub, sha256
from support.runs import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable


# The callback of people, and one of programs.
CALLBACKS = ("default", "ansible.posix.json")
LINE = re.compile(r"\[master\] ([^:]+): (\d+):(\d\d) (.+)")
# A percentage, a rate and the time that is left.
FLOW = re.compile(r"(\d+) % of (\d+) MiB(, ([\d.]+) ([KM])iB/s, about (\d+):(\d\d) more)?")
SECONDS = 25


def printed(folder: Path, callback: str, task: dict[str, Any]) -> str:
    """Return the output of a task on this machine, into a pipe; it must succeed."""
    folder.mkdir()
    (folder / "play.json").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": [task]}]))
    given = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    done = subprocess.run(
        [
            Path(sys.executable).with_name("ansible-playbook"), "-i", "master,", "-e", json.dumps(given),
            folder / "play.json",
        ],
        env={
            **os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_STDOUT_CALLBACK": callback,
            "ANSIBLE_ASYNC_DIR": str(folder / "async"), "ANSIBLE_SYSTEM_TMPDIRS": str(folder),
        },
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=HANG_S, check=False,
    )  # fmt: skip
    # Without universal newlines, which would hide a carriage return.
    text = done.stdout.decode()
    assert done.returncode == 0, text
    assert [path.name for path in folder.glob(".llama_cpp_cluster-*")] == [], "no note stays"
    return text


def shown(outputs: dict[str, str]) -> list[tuple[str, int, str]]:
    """Return the lines for people: the task, the seconds, and what it says. Check the form of all outputs."""
    for callback, text in outputs.items():
        assert "FAILED - RETRYING" not in text, text
        assert "ASYNC POLL" not in text, text
        # Neither a carriage return nor an escape sequence.
        assert re.search(r"[^\n\t\x20-\U0010ffff]", text) is None, repr(text)
        if callback != "default":
            assert LINE.search(text) is None, text
    assert json.loads(outputs["ansible.posix.json"])["plays"]
    found = [
        (match[1], int(match[2]) * 60 + int(match[3]), match[4])
        for match in map(LINE.fullmatch, outputs["default"].splitlines())
        if match
    ]
    print(*found, sep="\n")
    for (task, earlier, _what), (next_task, later, _next) in zip(found, found[1:]):
        assert task != next_task or later - earlier >= 8, found
    return found


def percents(found: list[tuple[str, int, str]], task: str, what: str) -> list[int]:
    """Return the percentages that a task shows; all lines but a first one have a rate and the time that is left."""
    said = [(seconds, line.removeprefix(what)) for name, seconds, line in found if name == task]
    flows = [(seconds, flow) for seconds, flow in ((seconds, FLOW.fullmatch(line)) for seconds, line in said) if flow]
    assert len(flows) == len(said) >= 2, said
    assert all(flow[3] for _seconds, flow in flows[1:]), said
    for _seconds, flow in flows:
        if flow[3]:
            # How fast it is depends on what else the machine does, so the three figures are compared with each other.
            total = int(flow[2])
            rate = float(flow[4]) / (1024 if flow[5] == "K" else 1)
            left = (100 - int(flow[1])) / 100 * total / rate
            # The percentage and the seconds are rounded down, and the rate may have two digits only.
            assert 0.94 * left - total / 100 / rate - 1 <= int(flow[6]) * 60 + int(flow[7]) <= 1.06 * left + 1, said
    return [int(flow[1]) for _seconds, flow in flows]


def of_all(folder: Path, task: Callable[[str], dict[str, Any]]) -> dict[str, str]:
    """Return the output of each callback."""
    with ThreadPoolExecutor(len(CALLBACKS)) as pool:
        begun = {name: pool.submit(printed, folder / name, name, task(name)) for name in CALLBACKS}
        return {name: future.result() for name, future in begun.items()}


@pytest.mark.long
def test_a_download_shows_percent_rate_and_time_left(tmp_path: Path, model: Path) -> None:
    content = model.read_bytes()
    with running_hub({"model.gguf": content}, bytes_per_s=len(content) / SECONDS) as hub:
        outputs = of_all(
            tmp_path,
            lambda callback: {
                "ansible.builtin.include_role": {"name": "llama_cpp.cluster.gguf_model"},
                "vars": {
                    "gguf_model_path": str(tmp_path / callback / "srv/model.gguf"),
                    "gguf_model_source": hub.direct("model.gguf"),
                    "gguf_model_sha256": sha256(content),
                },
            },
        )
    seen = percents(shown(outputs), "Download and verify the model", "downloading, ")
    assert 0 < seen[0] < seen[1] < 100
    for callback in CALLBACKS:
        assert (tmp_path / callback / "srv/model.gguf").read_bytes() == content


def test_a_wait_shows_for_what_and_how_far_it_is(tmp_path: Path) -> None:
    growing = tmp_path / "growing"
    growing.touch()
    wait = {
        "name": "Wait for the file",
        "llama_cpp.cluster.watched_wait": {
            "module": "ansible.builtin.stat",
            "arguments": {"path": str(growing), "get_checksum": False},
            "until": f"answer.stat.size >= {SECONDS << 20}",
            "shows": "{{ answer.stat.path }} grows:",
            "bytes": f"{{{{ [answer.stat.size, {SECONDS << 20}] }}}}",
            "timeout": HANG_S,
        },
    }

    def begun(callback: str) -> dict[str, Any]:
        return {"ansible.builtin.file": {"path": f"{tmp_path}/begun-{callback}", "state": "touch"}}

    with ThreadPoolExecutor(1) as pool:
        outputs = pool.submit(of_all, tmp_path, lambda callback: {"block": [begun(callback), wait]})
        wait_for((tmp_path / "begun-default").exists, HANG_S)
        with growing.open("wb", buffering=0) as file:
            for _second in range(SECONDS):
                time.sleep(1)
                file.write(bytes(1 << 20))
        seen = percents(shown(outputs.result()), "Wait for the file", f"{growing} grows: ")
    assert 0 < seen[0] < seen[-1] < 100
