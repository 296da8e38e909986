# SPDX-License-Identifier: GPL-3.0-or-later
"""The progress of a long run for people and for programs, and what stays behind when nobody watches any more."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.harness import HANG_S, ROOT, Release, Worker, run_module
from support.relay import TOKENS, SlowLink, relaying

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Start = Callable[..., Worker]

pytestmark = pytest.mark.llama

TASK = "Continue the prompt"
LINE = re.compile(r"\[master\] ([^:]+): (\d+):(\d\d) (.+)")
LOADING = re.compile(r"loading the model, (\d+) % of 2\d MiB(?:, [\d.]+ .iB/s)?(?:, about \d+:\d\d more)?")
GENERATING = re.compile(r"generating, (\d+) of (\d+) tokens at most(?:, about \d+:\d\d more)?")


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
        },
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


@pytest.mark.long
def test_people_see_where_a_run_is_and_programs_get_their_json(
    release: Release, model: Path, start: Start, tmp_path: Path
) -> None:
    size = model.stat().st_size
    given = {
        "bin_folder": str(release.bin), "model": str(model), "prompt": "Here's a joke:", "n_predict": TOKENS,
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
    release: Release, model: Path, start: Start, tmp_path: Path
) -> None:
    worker = start()
    given = {"bin_folder": str(release.bin), "model": str(model), "prompt": "x", "timeout": 6}
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
