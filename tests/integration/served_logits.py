# SPDX-License-Identifier: GPL-3.0-or-later
"""A model's logits for a text, token by token, from the programs that every release has.

`llama-results` would write logits, but no default release has it. `llama-server` gives the logarithm of each token's
probability, for all tokens if that many are requested. These are the logits except for a constant.
"""

from __future__ import annotations

import http.client
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from random_model import WORDS
from support.harness import HANG_S, Release, over
from support.logits import Logits
from support.server_buffers import serving

if TYPE_CHECKING:
    from collections.abc import Sequence

# A text of several batches comes first, then one more token at a time. Different kernels compute these two cases.
FIRST, LAST = 75, 81


def _asked(port: int, vocabulary: int) -> Logits:
    values = np.full((LAST - FIRST, vocabulary), np.nan)
    for row, words in zip(values, range(FIRST, LAST)):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG_S)
        wanted = {"prompt": " ".join(WORDS[:words]), "n_predict": 1, "temperature": 0, "n_probs": vocabulary}
        connection.request("POST", "/completion", json.dumps(wanted), {"Content-Type": "application/json"})
        answer = json.loads(connection.getresponse().read())
        connection.close()
        for one in answer["completion_probabilities"][0]["top_logprobs"]:
            row[one["id"]] = one["logprob"]
    return Logits(np.arange(FIRST, LAST), values)


def served(release: Release, model: Path, vocabulary: int, workers: Sequence[int] = (), *, threads: int = 2) -> Logits:
    """Return the logits that follow a text, computed here or by the workers on these loopback ports."""
    given = ["-c", "256", "-t", str(threads), "-ub", "32", "-np", "1", *over(workers)]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        with serving(release, model, log, *given) as (process, port):
            assert process.poll() is None, log.read_text(errors="replace")[-2000:]
            return _asked(port, vocabulary)
