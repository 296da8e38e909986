# SPDX-License-Identifier: GPL-3.0-or-later
"""Which device gets what its worker has repacked."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.llama_cpp.cluster.plugins.filter.repacked_weights import repacked_weights


@pytest.mark.parametrize(
    ("endpoints", "repacked", "figures"),
    [
        pytest.param(["a:1", "b:1"], {"a:1": 1.5, "b:1": 0.0}, [1.5, 0.0], id="each"),
        pytest.param(["a:1", "a:1", "b:1"], {"a:1": 1.5, "b:1": 2.0}, [1.5, None, 2.0], id="the-first-of-a-worker"),
        pytest.param([None, "a:1"], {"a:1": 1.5}, [None, 1.5], id="master"),
        pytest.param(["a:1"], {"a:1": None}, [None], id="not-told"),
        pytest.param(["a:1"], {}, [None], id="not-asked"),
        pytest.param([], {"a:1": 1.5}, [], id="no-device"),
    ],
)
def test_a_worker_is_counted_once(endpoints: list[Any], repacked: dict[str, Any], figures: list[Any]) -> None:
    devices = [{"name": str(number), "endpoint": endpoint} for number, endpoint in enumerate(endpoints)]
    said = {endpoint: None if mib is None else {"mib": mib} for endpoint, mib in repacked.items()}
    found = repacked_weights(devices, said)
    assert found == [{**device, "repacked_mib": mib} for device, mib in zip(devices, figures)]


def test_something_else_than_devices_is_refused() -> None:
    with pytest.raises(AnsibleFilterError, match="needs a list of devices"):
        repacked_weights({"name": "CPU"}, {})  # type: ignore[arg-type]
