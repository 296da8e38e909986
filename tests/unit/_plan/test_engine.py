# SPDX-License-Identifier: GPL-3.0-or-later
"""A session with llama-plan, in whose place there is a script, and what is made of its answers.

tests/integration/test_engine_plan.py runs the program itself.
"""

from __future__ import annotations

import re
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._plan.engine import Bytes, Engine, EngineError, Layer
from ansible_collections.llama_cpp.cluster.plugins.module_utils._plan.inputs import Load
from ansible_collections.llama_cpp.cluster.plugins.module_utils._plan.sizes import ByEngine

from support.runs import wait_for

ROW = {"part": "model", "device": "RPC0", "weights": 5, "context": 2, "compute": 1}
MASTER = {**ROW, "device": ""}
LAYER = {"device": "RPC0", "weights": 5, "elsewhere": 0, "context": 2}
PLAN: dict[str, Any] = {
    "n_ctx": 512,
    "slots": 2,
    "file": 9,
    "input": 4,
    "layers": [LAYER],
    "held": [ROW, {**ROW, "part": "draft", "weights": 3}, {**MASTER, "weights": 4}],
}


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """Return the place of the program beside the programs of a release."""
    (tmp_path / "libexec").mkdir()
    return tmp_path / "libexec/llama-plan"


def write(path: Path, body: str) -> str:
    """Write a program that keeps how it was started, and its process."""
    path.write_text(
        f"#!{sys.executable} -IS\nimport json, os, pathlib, sys, time\nPLAN = {PLAN!r}\n"
        "started = pathlib.Path(__file__ + '.started')\n"
        "with started.open('a') as file:\n    print(os.getpid(), *sys.argv[1:], file=file)\n"
        f"{body}\n"
    )
    path.chmod(0o755)
    return str(path)


def starts(path: Path) -> list[tuple[int, list[str]]]:
    """Return process and arguments of each start."""
    file = Path(f"{path}.started")
    lines = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
    return [(int(process), arguments) for process, *arguments in lines]


def running(path: Path) -> list[int]:
    return [process for process, _arguments in starts(path) if Path(f"/proc/{process}").exists()]


ANSWERS = """
for number, line in enumerate(sys.stdin):
    print(json.dumps({**PLAN, 'n_ctx': number, 'layers': [{**PLAN['layers'][0], 'device': line}]}), flush=True)
"""


def test_several_questions_go_to_one_process(program: Path) -> None:
    with closing(Engine(write(program, ANSWERS), "m.gguf", [1, 2], limit_s=7, one_run=True)) as engine:
        assert starts(program) == []
        plans = [engine.ask(options) for options in (["-ts", "1,1"], [], ["-c", "512", "--swa-full"])]
        [(process, arguments)] = starts(program)
        assert running(program) == [process]
    assert [plan.layers[0].device for plan in plans] == ["-ts\t1,1\n", "\n", "-c\t512\t--swa-full\n"]
    assert arguments == ["--seconds", "7", "--one-run", "--stand-ins", "1,2", "-m", "m.gguf"]


def test_what_is_held_is_summed_by_device_and_part(program: Path) -> None:
    with closing(Engine(write(program, "for _ in sys.stdin: print(json.dumps(PLAN), flush=True)"), "m")) as engine:
        plan = engine.ask([])
    held = [plan.on("RPC0"), plan.on("RPC0", "draft"), plan.on(""), plan.on("RPC1")]
    assert held == [Bytes(8, 4, 2), Bytes(3, 2, 1), Bytes(4, 2, 1), Bytes(0, 0, 0)]
    assert (plan.layers, plan.n_ctx, plan.slots) == ((Layer("RPC0", 5, 0, 2),), 512, 2)


UNKNOWN = "PROGRAM said what nobody understands: "
BAD: dict[str, tuple[str, str]] = {
    "an error, and it runs on": (
        r"print('{\"error\": \"a \\u001b[31m\"}', flush=True); time.sleep(600)",
        "llama.cpp cannot load it: a \ufffd[31m.",
    ),
    "the last of what it logs": (r"print('one\n\nKilled.\n', file=sys.stderr); sys.exit(1)", "cannot load it: Killed."),
    "an error in an option": (
        r"print('error while handling argument \"-c\": bad\n\nusage:\n-h', file=sys.stderr); sys.exit(1)",
        'llama.cpp cannot load it: error while handling argument "-c": bad.',
    ),
    "nothing, killed": ("os.kill(os.getpid(), 9)", "PROGRAM said nothing."),
    "no text": (r"os.write(1, b'\xff\n')", f"{UNKNOWN}\ufffd\ufffd."),
    "a number as text": ("print(json.dumps({**PLAN, 'n_ctx': '2'}))", UNKNOWN),
    "a plan without a layer": ("print(json.dumps({**PLAN, 'layers': []}))", UNKNOWN),
    "nothing of a plan": ("print('{}')", f"{UNKNOWN}{{}}\ufffd."),
    "a list": ("print('[]')", f"{UNKNOWN}[]\ufffd."),
}


@pytest.mark.parametrize(("body", "said"), BAD.values(), ids=BAD)
def test_the_reason_is_said_and_the_next_question_starts_it_anew(program: Path, body: str, said: str) -> None:
    again = f"if started.read_text().count('\\n') > 1:\n    exec({ANSWERS!r})\n    sys.exit()\nsys.stdin.readline()\n"
    with closing(Engine(write(program, again + body), "m.gguf")) as engine:
        with pytest.raises(EngineError, match=re.escape(said.replace("PROGRAM", str(program)))):
            engine.ask(["-c", "512"])
        assert running(program) == []
        assert engine.ask([]).n_ctx == 0
        assert len(starts(program)) == 2


def test_a_program_that_cannot_be_started_is_said(program: Path) -> None:
    with closing(Engine(str(program), "m.gguf")) as engine:
        with pytest.raises(EngineError) as caught:
            engine.ask([])
        assert str(caught.value) == f"{program} cannot be started: No such file or directory."
        program.write_text("no program")
        with pytest.raises(EngineError, match=r"cannot be started: Permission denied\."):
            engine.ask([])


@pytest.mark.parametrize("name", ["a\tb", "a\nb", "a\n"])
def test_an_option_is_not_taken_for_two_or_for_a_further_question(program: Path, name: str) -> None:
    with closing(Engine(write(program, ANSWERS), "m.gguf")) as engine:
        with pytest.raises(EngineError, match="An option has a tab or a line break"):
            engine.ask(["--lora", name])
        assert [engine.ask([]).n_ctx, engine.ask([]).n_ctx] == [0, 1]


def test_close_ends_it_whatever_it_does(program: Path) -> None:
    stubborn = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    engine = Engine(write(program, f"{stubborn}print(json.dumps(PLAN), flush=True)\ntime.sleep(600)"), "m.gguf")
    engine.ask([])
    assert len(running(program)) == 1
    engine.close()
    engine.close()
    wait_for(lambda: not running(program), 10)


def test_it_gets_no_environment_but_the_locale(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", "")
    body = "for _ in sys.stdin: print(json.dumps({'error': open('/proc/self/environ').read()}), flush=True)"
    with closing(Engine(write(program, body), "m.gguf")) as engine, pytest.raises(EngineError) as caught:
        engine.ask([])
    assert str(caught.value) == "llama.cpp cannot load it: LC_ALL=C\ufffd."


def test_each_question_is_asked_once_and_further_workers_are_another_process(program: Path) -> None:
    load = Load(("-c", "512"))
    with closing(ByEngine(write(program, ANSWERS), "m.gguf", [2, 1], one_run=False, tail=1, bits=8.5)) as asker:
        for _time in range(2):
            found = [asker.sizes(load, devices, [1] * devices) for devices in (3, 1, 5)]
            # The number of the question to a process.
            assert [sizes.context for sizes in found] == [0, 1, 0]
        stand_ins = [arguments[arguments.index("--stand-ins") + 1] for _process, arguments in starts(program)]
        assert stand_ins == ["2,1", "2,1,1,1"]
    assert running(program) == []
