# SPDX-License-Identifier: GPL-3.0-or-later
"""The order of these tests, and the pytest processes that run them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from xdist.remote import Producer

# This test runs first. If it ran last, the other processes would have nothing left to do.
LONGEST = "test_safetensors_are_converted_and_quantised_and_run"
# The tests of each of these groups look at one long play. One process runs the group, so that the play runs once.
TOGETHER = ("test_role_gguf_model.py::test_bad_input", "test_role_llama_cpp.py::test_a_bad_value")


class OneByOne(LoadScopeScheduling):
    """A scheduler that gives each process of `pytest -n` the next test when it has finished one."""

    def _split_scope(self, nodeid: str) -> str:
        return next((scope for scope in TOGETHER if scope in nodeid), nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> OneByOne:
    return OneByOne(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.name != LONGEST)
