# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a worker runs from its present unit and from the release in use."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc.listeners import Listener, Port
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc.units import Unit
from ansible_collections.llama_cpp.cluster.plugins.modules.rpc_server_info import is_running

NAME = "llama-rpc-server@50052.service"


def listener(**changes: Any) -> Listener:
    as_wanted = {"unit": NAME, "unit_digest": "3f78", "program": "/opt/llama_cpp/releases/new/bin/rpc-server"}
    return Listener("192.0.2.1", 7, **{**as_wanted, **changes})


@pytest.mark.parametrize(
    ("mark", "listeners", "running"),
    [
        pytest.param("3f78", [listener()], True, id="as-wanted"),
        pytest.param("3f78", [], False, id="stopped"),
        pytest.param("0000", [listener()], False, id="started-from-another-unit"),
        pytest.param(None, [listener(unit_digest=None)], False, id="without-a-mark"),
        pytest.param("3f78", [listener(program="/srv/releases/old/bin/rpc-server")], False, id="old-release"),
        pytest.param("3f78", [listener(program="/srv/bin/rpc-server")], True, id="no-release-in-its-path"),
        pytest.param("3f78", [listener(program=None)], True, id="program-not-seen"),
        pytest.param("3f78", [listener(unit="nc.service")], False, id="something-else-listens"),
    ],
)
def test_a_server_runs_from_its_unit(mark: str | None, listeners: list[Listener], running: bool) -> None:
    unit = Unit(NAME, 50052, "0" * 64, of_root=True, mark=mark)
    assert is_running(unit, Port(50052, listeners), "new") is running


def test_without_a_release_any_program_counts() -> None:
    unit = Unit(NAME, 50052, "0" * 64, of_root=True, mark="3f78")
    assert is_running(unit, Port(50052, [listener(program="/srv/releases/old/bin/rpc-server")]), None)
