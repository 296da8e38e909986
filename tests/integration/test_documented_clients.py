# SPDX-License-Identifier: GPL-3.0-or-later
"""The lines for curl and Python in docs/how-to/use-the-api.md run unchanged against a real service."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from support.api_service import ALIAS, Service, running_service
from support.examples import Block, blocks
from support.harness import HANG_S, Release, running_worker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.llama

CLIENTS = [block for block in blocks("bash", "python") if block.page.name == "use-the-api.md"]
CURL = [block for block in CLIENTS if block.text.startswith("curl ")]
PYTHON = [block for block in CLIENTS if "import OpenAI" in block.text]


@pytest.fixture(scope="module")
def service(release_7: Release, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("service")
    with ExitStack() as stack:
        workers = [stack.enter_context(running_worker(release_7, folder / f"{n}.log")) for n in range(2)]
        endpoints = [worker.endpoint for worker in workers]
        running = stack.enter_context(running_service(release_7, model, endpoints, folder))
        running.wait_for("Serving")
        yield running


def output(service: Service, *command: str) -> str:
    """Return the output of a client that gets the API's address and key from the page's two variables."""
    done = subprocess.run(
        command,
        env={**os.environ, "OPENAI_BASE_URL": service.client.url, "OPENAI_API_KEY": str(service.client.key)},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_page_has_lines_for_both() -> None:
    assert len(CURL) == 1
    assert len(PYTHON) == 2


@pytest.mark.parametrize("block", CURL, ids=str)
def test_curl_lists_the_model_and_gets_an_answer(service: Service, block: Block) -> None:
    said = output(service, "sh", "-euc", block.text)
    assert f'"id":"{ALIAS}"' in said.replace(" ", "")
    assert '"role":"assistant"' in said.replace(" ", "")


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_python_prints_an_answer(service: Service, block: Block) -> None:
    assert output(service, sys.executable, "-c", block.text).strip()
