# SPDX-License-Identifier: GPL-3.0-or-later
"""A llama-server, what it allocates, from its log, and an adapter for it."""

from __future__ import annotations

import os
import re
import subprocess
import urllib.request
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import gguf
import numpy as np

from support.harness import Release, end, free_port
from support.runs import wait_for
from support.synthetic_models import LAYERS, WIDTH

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# KV caches, recurrent states, and the states of DeepSeek V4.
_BUFFER = re.compile(r"(\S+) +(?:DSV4 \S+ )?(model|KV|RS|state|LoRA|compute|output) buffer size = +([\d.]+) MiB")


@contextmanager
def serving(release: Release, model: Path, log: Path, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Start llama-server; yield it and its port once it serves or has ended, and end it by its own process id."""
    port = free_port()
    command = [release.bin / "llama-server", "-m", model, "--port", str(port), "-t", "1", "--fit", "off", "--no-ui"]
    with log.open("w") as stream:
        process = subprocess.Popen(
            [*command, "--no-warmup", *options], stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT,
            env={**os.environ, "GGML_NO_BACKTRACE": "1"},
        )  # fmt: skip
        try:
            wait_for(lambda: process.poll() is not None or healthy(port), 120)
            yield process, port
        finally:
            end(process)


def server_log(release: Release, model: Path, log: Path, *options: str) -> str:
    """Return llama-server's log until it serves."""
    with serving(release, model, log, "-lv", "4", *options):
        pass
    said = log.read_text(errors="replace")
    assert ": model loaded" in said, said[-3000:]
    return said


def healthy(port: int) -> bool:
    with suppress(OSError):
        return bool(urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).status == 200)
    return False


def allocated(log: str) -> dict[str, dict[str, float]]:
    """Return the MiB of each kind of buffer by device: `CPU`, or the endpoint of a worker."""
    found: dict[str, dict[str, float]] = {}
    for name, kind, size in _BUFFER.findall(log):
        endpoint = re.search(r"\[(.*)\]", name)
        device = found.setdefault(endpoint[1] if endpoint else name.partition("_")[0], {})
        # A second reservation, or a larger output, replaces the first.
        device[kind] = float(size) if kind in ("compute", "output") else device.get(kind, 0.0) + float(size)
    return found


def adapter(path: Path, layers: int = LAYERS, width: int = WIDTH) -> Path:
    """Write a LoRA adapter of rank 16 and random weights for two matrices of each layer."""
    rng = np.random.default_rng(3)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 16.0)
    for layer in range(layers):
        for name in ("attn_q", "attn_output"):
            for part, shape, scale in (("a", (16, width), width**-0.5), ("b", (width, 16), 1)):
                weights = (scale * rng.standard_normal(shape)).astype(np.float32)
                writer.add_tensor(f"blk.{layer}.{name}.weight.lora_{part}", weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
