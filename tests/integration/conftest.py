# SPDX-License-Identifier: GPL-3.0-or-later
"""The order of these tests, and which processes of pytest they are in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from xdist.remote import Producer

# Begun first: nothing is left for the other process when it is the last.
LONGEST = "test_safetensors_are_converted_and_quantised_and_run"
# What the tests of each of these look at is one long play, which is not to run in each process.
TOGETHER = ("test_role_gguf_model.py::test_bad_input", "test_role_llama_cpp.py::test_a_bad_value")


class OneByOne(LoadScopeScheduling):
    """With `pytest -n` each process gets the next test when it is done with one."""

    def _split_scope(self, nodeid: str) -> str:
        return next((scope for scope in TOGETHER if scope in nodeid), nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> OneByOne:
    return OneByOne(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.name != LONGEST)
