# SPDX-License-Identifier: GPL-3.0-or-later
"""What is shown while a role waits: whole lines at a bounded rate for people, in a pipe too, and none for programs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.api_service import ALIAS, Service, running_service
from support.harness import HANG_S, ROOT, Release, Worker, free_port, running_worker
from support.hub_stand_in import running_hub, sha256
from support.runs import wait_for
from support.slow_link import slow_link

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    StartWorker = Callable[..., Worker]

pytestmark = pytest.mark.llama

# The callback of people, and two of programs.
CALLBACKS = ("default", "oneline", "ansible.posix.json")
LINE = re.compile(r"\[master\] ([^:]+): (\d+):(\d\d) (.+)")
# A percentage, a rate and the time that is left.
FLOW = re.compile(r"(\d+) % of (\d+) MiB(, ([\d.]+) ([KM])iB/s, about (\d+):(\d\d) more)?")
SECONDS = 25
# This connection sends files slowly, as one over a network does.
SLOW = f"""# SPDX-License-Identifier: GPL-3.0-or-later
import time
from ansible.plugins.connection.local import Connection as Local

DOCUMENTATION = '''
name: slow
short_description: slow
description: slow
author: nobody
extends_documentation_fragment: [connection_pipelining]
'''


class Connection(Local):
    transport = "slow"

    def put_file(self, in_path, out_path):
        with open(in_path, "rb") as source, open(out_path, "wb", buffering=0) as sink:
            pause = {SECONDS} / 100 if in_path.endswith(".gguf") else 0
            size = 1 + source.seek(0, 2) // 100
            source.seek(0)
            while block := source.read(size):
                sink.write(block)
                time.sleep(pause)
"""
SYSTEMCTL = """#!/bin/sh
: >{folder}/asked-$ANSIBLE_STDOUT_CALLBACK
echo ActiveState=active
echo "MainPID=$(cat {folder}/pid)"
echo "StatusText=$(cat {folder}/status)"
"""


def printed(folder: Path, callback: str, entry: str, variables: dict[str, Any], environment: dict[str, str]) -> str:
    """Return the output of a role's task file (`role/tasks`) on this machine, into a pipe; it must succeed."""
    folder.mkdir()
    role, _slash, tasks = entry.partition("/")
    include = {"name": f"llama_cpp.cluster.{role}", "tasks_from": tasks}
    task = {"name": "Include the role", "ansible.builtin.include_role": include}
    (folder / "play.json").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": [task]}]))
    given = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, **variables}
    (folder / "vars.json").write_text(json.dumps(given))
    done = subprocess.run(
        [
            Path(sys.executable).with_name("ansible-playbook"), "-i", "master,", "-e", f"@{folder}/vars.json",
            folder / "play.json",
        ],
        env={
            **os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_STDOUT_CALLBACK": callback,
            "ANSIBLE_ASYNC_DIR": str(folder / "async"), "ANSIBLE_SYSTEM_TMPDIRS": str(folder), **environment,
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


def of_all(folder: Path, entry: str, variables: Callable[[str], dict[str, Any]], **environment: str) -> dict[str, str]:
    """Return the output of each callback."""
    with ThreadPoolExecutor(len(CALLBACKS)) as pool:
        begun = {
            name: pool.submit(printed, folder / name, name, entry, variables(name), environment) for name in CALLBACKS
        }
        return {name: future.result() for name, future in begun.items()}


def test_a_download_shows_percent_rate_and_time_left(tmp_path: Path, model: Path) -> None:
    content = model.read_bytes()
    with running_hub({"model.gguf": content}, bytes_per_s=len(content) / SECONDS) as hub:
        outputs = of_all(
            tmp_path,
            "gguf_model/main",
            lambda callback: {
                "gguf_model_path": str(tmp_path / callback / "srv/model.gguf"),
                "gguf_model_url": hub.direct("model.gguf"),
                "gguf_model_sha256": sha256(content),
            },
        )
    seen = percents(shown(outputs), "Download and verify the model", "downloading, ")
    assert 0 < seen[0] < seen[1] < 100
    for callback in CALLBACKS:
        assert (tmp_path / callback / "srv/model.gguf").read_bytes() == content


@pytest.mark.long
def test_a_file_of_the_controller_shows_percent_rate_and_time_left(tmp_path: Path, model: Path) -> None:
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins/slow.py").write_text(SLOW)
    mine = tmp_path / "mine.gguf"
    shutil.copy(model, mine)
    outputs = of_all(
        tmp_path,
        "gguf_model/main",
        lambda callback: {
            "ansible_connection": "slow",
            "gguf_model_path": str(tmp_path / callback / "srv/model.gguf"),
            "gguf_model_controller_path": str(mine),
        },
        ANSIBLE_CONNECTION_PLUGINS=str(tmp_path / "plugins"),
    )
    seen = percents(shown(outputs), "Copy the model to the host", "sending, ")
    assert 0 < seen[0] < seen[1] < 100


@contextmanager
def stand_in_for_systemd(folder: Path, service: Service) -> Iterator[None]:
    """Let `systemctl show` tell what the service has said last, as its unit does."""
    programs, over = folder / "bin", threading.Event()
    programs.mkdir()
    (folder / "pid").write_text(str(service.process.pid))
    (folder / "status").write_text("")

    def follow() -> None:
        while not over.wait(0.2):
            own = [line for line in list(service.lines) if line.startswith(("Waiting", "Loading", "Serving"))]
            if own:
                (folder / "status.new").write_text(own[-1])
                (folder / "status.new").replace(folder / "status")

    (programs / "systemctl").write_text(SYSTEMCTL.format(folder=folder))
    (programs / "systemctl").chmod(0o755)
    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def collection_with(folder: Path, settings: Path) -> Path:
    """Return a folder with a copy of the collection whose modules find the services in another folder."""
    copy = folder / "collections/ansible_collections/llama_cpp/cluster"
    for part in ("plugins", "roles", "meta"):
        shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "galaxy.yml", copy)
    code = copy / "plugins/module_utils/_serve/service.py"
    text = code.read_text()
    assert 'Path("/etc/llama_server")' in text
    code.write_text(text.replace('Path("/etc/llama_server")', f'Path("{settings}")'))
    return folder / "collections"


def test_waiting_for_an_api_shows_for_what_and_how_far_the_load_is(
    release_7: Release, model: Path, tmp_path: Path, start_worker: StartWorker
) -> None:
    slow, port = start_worker(release_7), free_port()
    missing, settings = f"127.0.0.1:{port}", tmp_path / "etc"
    settings.mkdir()
    with ExitStack() as stack:
        # Half of the model goes over the slow link, after the other worker has come.
        link = stack.enter_context(slow_link(slow, model.stat().st_size, 2 * SECONDS))
        service = stack.enter_context(running_service(release_7, model, [link.endpoint, missing], tmp_path))
        shutil.copy(tmp_path / "settings.json", settings / f"{service.port}.json")
        stack.enter_context(stand_in_for_systemd(tmp_path, service))

        def come() -> None:
            # A person is told for what is waited.
            wait_for((tmp_path / "asked-default").exists, HANG_S)
            time.sleep(15)
            stack.enter_context(running_worker(release_7, tmp_path / "late.log", port=port))

        late = threading.Thread(target=come)
        late.start()
        outputs = of_all(
            tmp_path,
            "llama_server/start",
            lambda _callback: {
                "llama_server_port": service.port,
                "llama_server_keys_file": str(service.keys),
                "__llama_server_found": {"servers": []},
            },
            ANSIBLE_COLLECTIONS_PATH=str(collection_with(tmp_path, settings)),
            PATH=f"{tmp_path}/bin:{os.environ['PATH']}",
        )
        late.join()
    found = [line for line in shown(outputs) if line[0] == "Wait until the API serves"]
    assert found[0][2].startswith(f"Waiting for 1 of 2 workers, {missing}. {missing} refuses connections: start"), found
    loading = [line for line in found if line[2].startswith("Loading")]
    said = f"Loading {ALIAS} over 2 workers. Sent to the workers, besides what their caches have: "
    seen = percents(loading, "Wait until the API serves", said)
    assert seen == sorted(seen)
    assert seen[0] < seen[-1] < 100
    assert f"http://127.0.0.1:{service.port}/v1 serves {ALIAS} over 2 workers." in outputs["default"]
