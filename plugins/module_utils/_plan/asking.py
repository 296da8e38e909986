# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: a plan of files on this host, by a release's engine if it has one, else by an estimate."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Sequence

from .._gguf.header import read_header, read_model
from .engine import PROGRAM
from .estimate import ByHeader
from .options import value_of
from .result import plan
from .sizes import ByEngine

if TYPE_CHECKING:
    from .._gguf.header import Header
    from .inputs import Cluster, Load

# The layers that this draft has use the caches of the model's last two (src/llama-model.cpp).
_USES_TWO = "gemma4-assistant"


def _tail(load: Load) -> int:
    draft = value_of(load.options, "-md")
    return 2 if draft and read_header(Path(draft)).metadata.get("general.architecture") == _USES_TWO else 1


def plan_files(
    model: str,
    load: Load,
    cluster: Cluster,
    *,
    bin_folder: str = "",
    one_run: bool = False,
    variables_of: str = "module",
) -> dict[str, Any]:
    """Return the plan for a model; raises GgufError, SplitError or OSError.

    `bin_folder` has the programs of the release that will load it. `one_run` is llama-completion, else llama-server.
    """
    headers = read_model(Path(model))
    program = Path(bin_folder or "none").parent / PROGRAM
    if bin_folder and os.access(program, os.X_OK):
        engine = ByEngine(
            str(program),
            model,
            [worker.devices for worker in cluster.workers],
            one_run=one_run,
            tail=_tail(load),
            bits=_bits(headers),
        )
        try:
            return plan(engine, load, cluster, variables_of=variables_of)
        finally:
            engine.close()
    why = f"{program} is missing" if bin_folder else "no release is named that could be asked"
    return plan(ByHeader(headers, tail=_tail(load), why=why), load, cluster, variables_of=variables_of)


def _bits(headers: Sequence[Header]) -> float:
    """Return the bits of a weight."""
    tensors = [tensor for header in headers for tensor in header.tensors]
    return 8 * sum(it.bytes or 0 for it in tensors) / max(1, sum(it.elements for it in tensors))
