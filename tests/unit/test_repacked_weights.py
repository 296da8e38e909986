# SPDX-License-Identifier: GPL-3.0-or-later
"""The device that gets the repacked weights of its worker."""

from __future__ import annotations

from typing import Any

import pytest

from support.templates import loaded, worked_out
from support.tree import ROOT

TASKS = loaded(ROOT / "roles/inference/tasks/repacked_weights.yml")


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
    variables = {"inference_outcome": {"devices": devices}, "__inference_repacked": said}
    assert worked_out(TASKS[-1]["vars"]["__inference_devices"], variables) == [
        {**device, "repacked_mib": mib} for device, mib in zip(devices, figures)
    ]
