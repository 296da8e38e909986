# SPDX-License-Identifier: GPL-3.0-or-later
"""The logits of every position of a text, by upstream's `llama-results`, and their perplexity."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from random_model import WORDS
from support.harness import HANG_S, over
from support.logits import Logits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from support.builds import Build

# 160 tokens with the first one, which is not in the text. (llama-results fails if their number is no multiple of four.)
TEXT = " ".join(WORDS[7 * number % len(WORDS)] for number in range(159))


# Memory that is never freed is upstream's, so leaks are not reported.
STRICT = {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "halt_on_error=1"}


def results(
    build: Build,
    model: Path,
    workers: Sequence[int] = (),
    *,
    threads: int = 2,
    text: str = TEXT,
    under: tuple[str, ...] = (),
    options: tuple[str, ...] = (),
) -> Logits:
    """Return the logits of a text, computed here or on the workers at these ports of loopback."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "logits"
        command = [*under, str(build.bin / "llama-results"), "-m", str(model), "-p", text, "-c", "256", "-ub", "64"]
        command += ["-t", str(threads), "-fit", "off", "-o", str(file)]
        command += [*over(workers), *options]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=HANG_S, check=False,
            env={**os.environ, "GGML_NO_BACKTRACE": "1", **STRICT},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        return Logits.read(file)


def perplexity(logits: Logits) -> float:
    """Return the perplexity of the text of these logits: the number of tokens that the model wavers between."""
    values = logits.values[:-1]
    total = np.log(np.exp(values - values.max(axis=1, keepdims=True)).sum(axis=1)) + values.max(axis=1)
    said = values[np.arange(len(values)), logits.tokens[1:]]
    return float(np.exp((total - said).mean()))


# How far kernels that add in other orders may part, as a share of the logits' spread: activations are rounded to eight
# bits.
OTHER_KERNELS = 0.1
SHAPES = {"dense": {}, "experts": {"experts": 4}, "tied": {"tied": True}}
