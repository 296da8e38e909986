# SPDX-License-Identifier: GPL-3.0-or-later
"""Make `ansible_collections.llama_cpp.cluster` importable from here, by Ansible's own loader; no example is timed.

What fails is written to the file that FAILED_TESTS names, if it does, for who sees only the end of a long log.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ansible.utils.collection_loader._collection_finder import _AnsibleCollectionFinder
from hypothesis import settings

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).resolve().parent.parent

_AnsibleCollectionFinder(paths=[str(ROOT / ".venv" / "collections")])._install()

# On a busy machine any example may take a second.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    file = os.environ.get("FAILED_TESTS")
    if not file or hasattr(config, "workerinput"):  # the processes of `pytest -n` have their tests told once more
        return
    with Path(file).open("a") as failed:
        for report in [*terminalreporter.getreports("failed"), *terminalreporter.getreports("error")]:
            crash = getattr(report.longrepr, "reprcrash", None)
            why = crash.message if crash else report.longreprtext[-300:]
            print(f"{report.nodeid}: {why.strip()[:300]}", file=failed)
