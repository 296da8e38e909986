# SPDX-License-Identifier: GPL-3.0-or-later
"""A model's logits for a text, token by token, from the programs that every release has.

`llama-results` would write logits, but no default release has it. `llama-server` gives the logarithm of each token's
probability, for all tokens if that many are requested. These are the logits except for a constant.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import tempfile
import time
from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np

from random_model import WORDS
from support.harness import HANG_S, Release, end, free_port, over
from support.logits import Logits

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

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


def _ready(port: int) -> bool:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=HANG_S)) as connection:
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == http.client.OK
        except ConnectionError:
            return False


def served(release: Release, model: Path, vocabulary: int, workers: Sequence[int] = (), *, threads: int = 2) -> Logits:
    """Return the logits that follow a text, computed here or by the workers on these loopback ports."""
    port = free_port()
    command = [release.bin / "llama-server", "-m", model, "--host", "127.0.0.1", "--port", str(port), "-c", "256"]
    command += ["-t", str(threads), "-ub", "32", "-np", "1", "--no-ui", "-fit", "off"]
    command += over(workers)
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, "GGML_NO_BACKTRACE": "1"},
        )
        try:
            deadline = time.monotonic() + HANG_S
            while not _ready(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    output.seek(0)
                    raise RuntimeError(output.read()[-2000:].decode(errors="replace"))
                time.sleep(0.02)
            return _asked(port, vocabulary)
        finally:
            end(process)
