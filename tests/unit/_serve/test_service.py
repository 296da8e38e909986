# SPDX-License-Identifier: GPL-3.0-or-later
"""The state and the message of an API service, from its unit and from the answers of its API."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._serve.service import (
    Service,
    files_without_key,
    is_outdated,
    message_of,
    metrics_link,
    missing,
    read_division,
    read_key,
    read_plan,
    read_properties,
    read_services,
    release_of,
    state_of,
)

if TYPE_CHECKING:
    from pathlib import Path

SETTINGS: dict[str, Any] = {
    "program": "/opt/llama_cpp/current/bin/llama-server",
    "arguments": [],
    "workers": ["10.0.0.11:50052", "10.0.0.12:50052"],
    "model": "/srv/models/m.gguf",
    "alias": "m",
    "address": "127.0.0.1",
    "port": 8080,
    "keys_file": "/etc/llama_server/8080.keys",
    "stall_timeout_s": 600,
    "metrics_file": None,
    "ready_port": 0,
}
WAITING = "Waiting for 1 of 2 workers, 10.0.0.12:50052. 10.0.0.12:50052 refuses connections: start it."

# The unit's state, the API's state, and the resulting state.
STATES = {
    "serving": ("active", "serving", "serving"),
    "loading": ("active", "loading", "loading"),
    "waiting": ("active", "silent", "waiting"),
    "between-two-starts": ("activating", "silent", "waiting"),
    "stopped": ("inactive", "silent", "stopped"),
    "being-drained": ("deactivating", "serving", "stopped"),
    "failed": ("failed", "silent", "failed"),
}


def services_of(folder: Path, **settings: Any) -> list[Service]:
    (folder / "8080.json").write_text(json.dumps({**SETTINGS, **settings}))
    return read_services(folder)


@pytest.mark.parametrize(("active", "api", "state"), STATES.values(), ids=STATES.keys())
def test_the_state_follows_from_unit_and_api(active: str, api: str, state: str) -> None:
    assert state_of({"ActiveState": active}, api) == state


# The state, the unit's last sentence, the API's answer, and the message.
MESSAGES = {
    "waits": ("waiting", WAITING, {}, "Waiting for 1 of 2 workers, 10.0.0.12:50052. 10.0.0.12:50052 refuses"),
    "about-to-start": ("waiting", "", {}, "is about to start: see `journalctl -u llama-server@8080.service`"),
    "stopped": ("stopped", "", {}, "start it with `systemctl start llama-server@8080.service`"),
    "failed": ("failed", "", {}, "has failed: see `journalctl"),
    "generates-nothing": ("serving", "", {"problem": "it generates nothing"}, "is up, but it generates nothing: see"),
    "open": ("serving", "", {"open_paths": ["/slots", "/props"]}, "answers /slots, /props without a key: run the"),
    "healthy": ("serving", "", {}, "http://127.0.0.1:8080/v1 serves m over 2 workers."),
}


@pytest.mark.parametrize(("state", "status", "answer", "said"), MESSAGES.values(), ids=MESSAGES.keys())
def test_one_sentence_says_how_it_is(
    tmp_path: Path, state: str, status: str, answer: dict[str, Any], said: str
) -> None:
    (service,) = services_of(tmp_path)
    message = message_of(service, state, {"StatusText": status}, answer)
    assert said in message
    assert message.endswith(".")


def test_services_are_read_by_port_and_others_files_are_left_alone(tmp_path: Path) -> None:
    for port in (9090, 808):
        (tmp_path / f"{port}.json").write_text(json.dumps({**SETTINGS, "port": port}))
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "other.json").write_text('{"port": 1}')
    (tmp_path / "8080.plan").write_text("{}")
    assert [service.unit for service in read_services(tmp_path)] == [
        "llama-server@808.service",
        "llama-server@9090.service",
    ]
    assert read_services(tmp_path / "none") == []


def test_an_address_that_is_every_address_is_asked_on_loopback(tmp_path: Path) -> None:
    (service,) = services_of(tmp_path, address="0.0.0.0")
    assert (service.own_address, service.url) == ("127.0.0.1", "http://0.0.0.0:8080/v1")


def test_the_first_key_of_a_file_is_read(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    assert read_key(keys) is None
    keys.write_text("# of the editor\n\nfirst-key\nsecond-key\n")
    assert read_key(keys) == "first-key"


def test_what_systemctl_shows_is_read() -> None:
    assert read_properties("ActiveState=active\nStatusText=a=b\n") == {"ActiveState": "active", "StatusText": "a=b"}


def test_the_release_that_runs_is_that_of_the_program(tmp_path: Path) -> None:
    (tmp_path / "7/task/7").mkdir(parents=True)
    (tmp_path / "7/task/7/children").write_text("8 9 ")
    for child, program in ((8, "/usr/bin/true"), (9, "/opt/llama_cpp/releases/0.3.36-0c1e/bin/llama-server")):
        (tmp_path / str(child)).mkdir()
        (tmp_path / str(child) / "exe").symlink_to(program)
    assert release_of(7, tmp_path) == "0.3.36-0c1e"
    assert release_of(6, tmp_path) is None


OLD, NEW = 4000.0, 1000.0


def host(folder: Path, started_s: float, **patches: Any) -> tuple[Service, dict[str, Any]]:
    """Return a service that started so many seconds ago, and the folders of a host with its older files."""
    release = folder / "releases/new"
    (release / "bin").mkdir(parents=True)
    (release / "manifest.json").write_text(json.dumps(patches))
    (folder / "current").symlink_to(release)
    for name in (
        "programs/_rpc/prober.py",
        "programs/llama_server_service.py",
        "units/llama-server@8080.service",
        "8080.keys",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("X-TextfileLink=/srv/node/llama_server_8080.prom\n")
    [service] = services_of(folder, program=f"{folder}/current/bin/llama-server", keys_file=f"{folder}/8080.keys")
    for path in folder.rglob("*"):
        os.utime(path, (time.time() - OLD - 1000,) * 2)
    (folder / "proc/7").mkdir(parents=True)
    ticks = (time.clock_gettime(time.CLOCK_BOOTTIME) - started_s) * os.sysconf("SC_CLK_TCK")
    (folder / "proc/7/stat").write_text(f"7 (a) b) S {'0 ' * 18}{ticks:.0f} 0")
    return service, {name: folder / name for name in ("programs", "units", "proc")} | {"folder": folder}


@pytest.mark.parametrize(
    ("changed", "at_s", "patches", "outdated"),
    [
        (None, 0, [], False),
        ("8080.json", NEW, [], True),
        ("8080.json", OLD + 500, [], False),
        ("8080.json", -NEW, [], False),
        ("units/llama-server@8080.service", NEW, [], True),
        ("programs/_rpc/prober.py", NEW, [], True),
        ("8080.keys", NEW, [], True),
        ("8080.keys", NEW, [{"name": "programs"}], False),
    ],
    ids=["nothing", "settings", "before", "a-clock-was-set", "unit", "program", "keys", "keys-that-are-read-again"],
)
def test_a_service_that_started_before_its_files_is_outdated(
    tmp_path: Path, changed: str | None, at_s: float, patches: list[Any], outdated: bool
) -> None:
    service, places = host(tmp_path, OLD, patches=patches)
    if changed:
        os.utime(tmp_path / changed, (time.time() - at_s,) * 2)
    assert is_outdated(service, {"MainPID": "7"}, **places) is outdated
    assert is_outdated(service, {"MainPID": "7", "NeedDaemonReload": "yes"}, **places)
    assert not is_outdated(service, {"MainPID": "0", "NeedDaemonReload": "yes"}, **places), "it does not run"


def test_another_release_makes_a_service_outdated(tmp_path: Path) -> None:
    service, places = host(tmp_path, OLD)
    (tmp_path / "proc/7/task/7").mkdir(parents=True)
    (tmp_path / "proc/7/task/7/children").write_text("8")
    (tmp_path / "proc/8").mkdir()
    for release, outdated in (("new", False), ("old", True)):
        (tmp_path / "proc/8/exe").unlink(missing_ok=True)
        (tmp_path / "proc/8/exe").symlink_to(f"/opt/llama_cpp/releases/{release}/bin/llama-server")
        assert is_outdated(service, {"MainPID": "7"}, **places) is outdated


def test_what_the_role_has_recorded_is_read(tmp_path: Path) -> None:
    service, places = host(tmp_path, OLD)
    assert metrics_link(service, places["units"]) == "/srv/node/llama_server_8080.prom"
    assert read_plan(service, tmp_path) is None
    (tmp_path / "8080.plan").write_text('{"tensor_split": [1]}')
    assert read_plan(service, tmp_path) == {"tensor_split": [1]}
    assert missing([f"{tmp_path}/8080.plan", f"{tmp_path}/8080.plan/", f"{tmp_path}/"]) == [f"{tmp_path}/8080.plan/"]
    (tmp_path / "8081.keys").write_text("# no key\n\n")
    assert files_without_key(tmp_path) == [f"{tmp_path}/8081.keys"]


def test_a_service_says_over_how_many_of_its_workers_it_serves(tmp_path: Path) -> None:
    service, _places = host(tmp_path, OLD)
    assert read_division(service, tmp_path) is None
    file = tmp_path / "llama_server_8080/division.json"
    file.parent.mkdir()
    for content in ("{", "[]", '{"serving": []}'):
        file.write_text(content)
        assert read_division(service, tmp_path) is None
    lists = {name: [] for name in ("serving", "spare", "lost", "excluded", "ready")}
    file.write_text(json.dumps({**lists, "serving": ["a:1"], "degraded": True, "losses": {}}))
    division = read_division(service, tmp_path)
    assert division == {**lists, "serving": ["a:1"], "degraded": True}
    said = message_of(service, "serving", {}, {}, division)
    assert said.endswith(f"over 1 of {len(service.workers)} workers.")
