# SPDX-License-Identifier: GPL-3.0-or-later
"""The progress of long tasks: whole lines at a bounded rate for people, in a pipe too, and none for programs.

Nothing stays behind when nobody watches any more.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.harness import HANG_S, ROOT, Release, Worker, run_module
from support.hub_stand_in import running_hub, sha256
from support.relay import TOKENS, SlowLink, relaying
from support.runs import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Start = Callable[..., Worker]

pytestmark = pytest.mark.llama

TASK = "Continue the prompt"
LINE = re.compile(r"\[master\] ([^:]+): (\d+):(\d\d) (.+)")
LOADING = re.compile(r"loading the model, (\d+) % of 2\d MiB(?:, [\d.]+ .iB/s)?(?:, about \d+:\d\d more)?")
GENERATING = re.compile(r"generating, (\d+) of (\d+) tokens at most(?:, about \d+:\d\d more)?")


# The callback of people, and one of programs.
CALLBACKS = ("default", "ansible.posix.json")
# A percentage, a rate and the time that is left.
FLOW = re.compile(r"(\d+) % of (\d+) MiB(, ([\d.]+) ([KM])iB/s, about (\d+):(\d\d) more)?")
SECONDS = 25


@contextmanager
def play(folder: Path, callback: str, task: dict[str, Any]) -> Iterator[subprocess.Popen[bytes]]:
    """Run one task on this machine, with its own folder for temporary files; yield the process."""
    folder.mkdir()
    (folder / "tmp").mkdir()
    (folder / "play.json").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": [task]}]))
    # With this variable, lines would appear at once even if the code did not flush them.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    process = subprocess.Popen(
        [
            Path(sys.executable).with_name("ansible-playbook"), "-i", "master,", "-c", "local",
            "-e", f"ansible_python_interpreter={sys.executable}", folder / "play.json",
        ],
        cwd=ROOT,
        env={
            **environment, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "NO_COLOR": "1",
            "ANSIBLE_SYSTEM_TMPDIRS": str(folder / "tmp"), "ANSIBLE_STDOUT_CALLBACK": callback,
            "ANSIBLE_ASYNC_DIR": str(folder / "async"),
        },
        # Without universal newlines, which would hide a carriage return.
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=HANG_S)


def inference(arguments: dict[str, Any]) -> dict[str, Any]:
    return {"name": TASK, "llama_cpp.cluster.distributed_inference": arguments}


def test_people_see_where_a_run_is_and_programs_get_their_json(
    release_7: Release, model: Path, start: Start, tmp_path: Path
) -> None:
    size = model.stat().st_size
    given = {
        "bin_folder": str(release_7.bin), "model": str(model), "prompt": "Here's a joke:", "n_predict": TOKENS,
        "extra_args": ["--ignore-eos"], "threads": 1,
    }  # fmt: skip
    workers = [start() for _number in range(2)]
    seen = []
    with ExitStack() as stack:
        link = stack.enter_context(relaying(SlowLink(workers[0], size, 12, waits=True)))
        # The run takes long enough that people would see a line.
        other_link = stack.enter_context(relaying(SlowLink(workers[1], size, 12)))
        people = stack.enter_context(
            play(tmp_path / "people", "default", inference({**given, "workers": [link.endpoint]}))
        )
        programs = stack.enter_context(
            play(tmp_path / "programs", "ansible.posix.json", inference({**given, "workers": [other_link.endpoint]}))
        )
        long = {"llama_cpp.cluster.watched_command": {"argv": ["sleep", "13"], "log": str(tmp_path / "log")}}
        command = stack.enter_context(play(tmp_path / "command", "ansible.posix.json", long))
        assert people.stdout is not None
        for output in people.stdout:
            line = LINE.fullmatch(output.decode().rstrip())
            if line:
                seen.append((int(line[2]) * 60 + int(line[3]), line[4], 100 * link.sent / size))
                if LOADING.fullmatch(line[4]):
                    link.begin_shown.set()
                    if "more" in line[4]:
                        link.load_shown.set()
                elif GENERATING.fullmatch(line[4]):
                    link.tokens_shown.set()
        out, err = programs.communicate(timeout=HANG_S)
        of_command, _err = command.communicate(timeout=HANG_S)
        assert people.wait(HANG_S) == 0
    assert programs.returncode == 0, (out + err).decode()

    # A line comes about every ten seconds, and none before.
    seconds = [second for second, _what, _percent in seen]
    assert seconds[0] >= 9
    assert all(later - earlier >= 8 for earlier, later in zip(seconds, seconds[1:]))
    # The lines about the load never claim too much, and give the remaining time as soon as it is known.
    loading = [
        (int(match[1]), sent) for match, sent in ((LOADING.fullmatch(what), sent) for _s, what, sent in seen) if match
    ]
    assert all(percent <= sent + 3 for percent, sent in loading), seen
    assert loading[-1][0] >= 20
    assert any(LOADING.fullmatch(what) and "more" in what for _second, what, _sent in seen)
    generating = [int(match[1]) for match in (GENERATING.fullmatch(what) for _second, what, _percent in seen) if match]
    assert generating
    assert generating == sorted(generating)
    assert all(0 < tokens <= TOKENS for tokens in generating)

    assert json.loads(of_command)["plays"][0]["tasks"][0]["hosts"]["master"]["elapsed_s"] >= 13

    # The result equals that of the module alone.
    (result,) = (task["hosts"]["master"] for task in json.loads(out)["plays"][0]["tasks"])
    alone = run_module("distributed_inference", {**given, "workers": [workers[0].endpoint]})
    assert result["text"] == alone["text"]
    assert {name for name in result if not name.startswith("_")} == {*alone, "action"}
    assert result["invocation"]["module_args"] == {
        **alone["invocation"]["module_args"], "workers": [other_link.endpoint],
    }  # fmt: skip
    assert LINE.search(err.decode()) is None
    assert [path for folder in tmp_path.glob("*/tmp") for path in folder.iterdir()] == []


def test_nothing_stays_behind_when_the_controller_goes_away(
    release_7: Release, model: Path, start: Start, tmp_path: Path
) -> None:
    worker = start()
    given = {"bin_folder": str(release_7.bin), "model": str(model), "prompt": "x", "timeout": 6}
    with relaying(SlowLink(worker, model.stat().st_size, 60)) as link:
        with play(tmp_path / "p", "default", inference({**given, "workers": [link.endpoint]})) as controller:
            deadline = time.monotonic() + HANG_S
            while not list((tmp_path / "p/tmp").iterdir()) or not worker.held():
                assert time.monotonic() < deadline, controller.communicate()
                time.sleep(0.05)
            # Its children live on, as on a host whose controller is gone.
            controller.kill()
        deadline = time.monotonic() + HANG_S
        while list((tmp_path / "p/tmp").iterdir()) or worker.held():
            assert time.monotonic() < deadline, "the run goes on, or its file is still there"
            time.sleep(0.1)


def printed(folder: Path, callback: str, task: dict[str, Any]) -> str:
    """Return the output of a task on this machine, into a pipe; it must succeed."""
    with play(folder, callback, task) as process:
        out, err = process.communicate(timeout=HANG_S)
    text = (out + err).decode()
    assert process.returncode == 0, text
    assert [path.name for path in (folder / "tmp").glob(".llama_cpp_cluster-*")] == [], "no note stays"
    return out.decode()


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
