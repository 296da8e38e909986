# SPDX-License-Identifier: GPL-3.0-or-later
"""Why a service's llama-server has ended, from the journal of the service."""

from __future__ import annotations

import pytest
from ansible_collections.llama_cpp.cluster.plugins.modules.llama_server_info import why_it_ended

E = "0.00.100.000 E "
LOST = "\nLoading m over 2 workers.\nThe connection to a:1 has ended, so llama-server is ended.\n"
ENDED = "llama-server ended with exit status 1; its last lines are above. It is started again.\n"


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (
            f"{E}llama_model_load: error loading model: unknown model architecture: 'x'\n",
            "unknown model architecture: 'x'",
        ),
        ("/b/ggml/src/ggml.c:7: GGML_ASSERT(x) failed\n", "ggml.c:7: GGML_ASSERT(x) failed"),
        (f"{E}srv    load_model: failed\x1b[2J to start\n", "srv    load_model: failed\ufffd[2J to start"),
    ],
    ids=["model", "assertion", "error"],
)
def test_the_reason_is_that_of_the_last_run(lines: str, reason: str) -> None:
    before = f"Looking at the workers.\nLoading m over 2 workers.\n{E}something older\n{ENDED}"
    now = "Looking at the workers.\nLoading m over 2 workers.\n"
    journal = f"{before}{now}{lines}{ENDED}{now}"
    assert why_it_ended(journal) == f" llama-server has ended before: {reason}."


def test_a_lost_worker_and_a_first_start_are_no_such_reason() -> None:
    assert why_it_ended(f"{E}something older\n{ENDED}{LOST}{ENDED}Looking at the workers.\n") == ""
    assert why_it_ended(f"Loading m over 2 workers.\n{E}an error\n") == ""
    assert why_it_ended("") == ""
