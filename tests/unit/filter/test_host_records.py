# SPDX-License-Identifier: GPL-3.0-or-later
"""The records of hosts, from their variables."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.llama_cpp.cluster.plugins.filter.host_records import host_records

HOSTVARS: dict[str, dict[str, Any]] = {
    "one": {"ansible_host": "192.0.2.1", "__out": "It is down.", "__look": {"servers": [], "out": "of its own"}},
    "two": {"ansible_host": "192.0.2.2", "rpc_server_port": 50060},
}


@pytest.mark.parametrize(
    ("hosts", "options", "records"),
    [
        pytest.param([], {"out": "__out"}, {}, id="no-host"),
        pytest.param(["two", "one"], {"out": "__out"}, {"two": {"out": None}, "one": {"out": "It is down."}}, id="key"),
        pytest.param(["one"], {"merge": "__look"}, {"one": HOSTVARS["one"]["__look"]}, id="merged"),
        pytest.param(
            ["one"], {"merge": "__look", "out": "__out"}, {"one": HOSTVARS["one"]["__look"]}, id="merged-last"
        ),
        pytest.param(["two"], {"merge": "__look"}, {"two": {}}, id="nothing-to-merge"),
        pytest.param(
            ["two"], {"endpoints": True}, {"two": {"endpoints": ["192.0.2.2:50060"], "groups": [""]}}, id="endpoints"
        ),
    ],
)
def test_each_host_has_its_record(hosts: list[str], options: dict[str, Any], records: dict[str, Any]) -> None:
    found = host_records(hosts, HOSTVARS, **options)
    assert found == records
    assert list(found) == hosts
