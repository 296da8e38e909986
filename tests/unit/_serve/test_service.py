# SPDX-License-Identifier: GPL-3.0-or-later
"""The state and the message of an API service, from its unit and from the answers of its API."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._serve.service import (
    Service,
    message_of,
    read_key,
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
