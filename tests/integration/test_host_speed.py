# SPDX-License-Identifier: GPL-3.0-or-later
"""The script that measures how fast a host reads weights, with the real llama-bench, and what it refuses."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import gguf
import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.shapes import SHAPES, bytes_a_token

import host_speed
from support.harness import HANG_S, ROOT, Release

SCRIPT = ROOT / "playbooks/files/host_speed.py"
MIB = 1 << 20


def test_the_script_knows_all_dense_models_of_the_size_page_and_what_a_token_reads() -> None:
    read = {shape.name: bytes_a_token(shape) / 1e9 for shape in SHAPES if not shape.experts}
    assert pytest.approx(read, abs=0.005) == host_speed.GB_A_TOKEN


def caches(folder: Path, cpus: dict[int, dict[int, tuple[str, str, str]]]) -> Path:
    """Write what the kernel says of caches: for each CPU and level the type, the size and the CPUs that share it."""
    for cpu, levels in cpus.items():
        for number, (level, texts) in enumerate(levels.items()):
            index = folder / f"cpu{cpu}/cache/index{number}"
            index.mkdir(parents=True)
            for name, text in zip(("level", "type", "size", "shared_cpu_list"), (str(level), *texts)):
                (index / name).write_text(text + "\n")
    return folder


@pytest.mark.parametrize(
    ("cpus", "mib"),
    [
        pytest.param(
            {
                cpu: {1: ("Data", "48K", str(cpu)), 2: ("Unified", "2048K", str(cpu)), 3: ("Unified", "32768K", "0-1")}
                for cpu in (0, 1)
            },
            32,
            id="one-shared",
        ),
        pytest.param(
            {0: {3: ("Unified", "32768K", "0-7")}, 8: {3: ("Unified", "32M", "8-15")}},
            64,
            id="two-of-a-processor",
        ),
        pytest.param({cpu: {2: ("Unified", "1024K", str(cpu))} for cpu in range(4)}, 4, id="no-third-level"),
        pytest.param({0: {2: ("Instruction", "1024K", "0"), 1: ("Data", "unknown", "0")}}, 0, id="nothing-usable"),
        pytest.param({}, 0, id="nothing"),
    ],
)
def test_all_last_level_caches_count(cpus, mib: int, tmp_path: Path) -> None:
    assert host_speed.last_level_cache(set(cpus) or {0}, caches(tmp_path, cpus)) == mib * MIB


@pytest.mark.parametrize("layers", [1, 3])
def test_the_model_is_a_gguf_file_of_blocks_that_are_not_all_alike(layers: int, tmp_path: Path) -> None:
    with (tmp_path / "model.gguf").open("wb") as file:
        host_speed.write_model(file, layers)
    tensors = gguf.GGUFReader(tmp_path / "model.gguf").tensors
    kinds = {kind for tensor in tensors if (kind := tensor.tensor_type) != gguf.GGMLQuantizationType.F32}
    assert kinds == {gguf.GGMLQuantizationType.Q4_0}
    read = sum(int(tensor.n_bytes) for tensor in tensors if tensor.name != "token_embd.weight")
    assert read == host_speed.bytes_a_token(layers)
    assert host_speed.layers_for(read) == layers
    assert host_speed.layers_for(read + 1) == layers + 1
    down = tensors[-1].data
    assert 0.005 < float(gguf.dequantize(down[:8], gguf.GGMLQuantizationType.Q4_0).std()) < 0.05
    pages = down.tobytes()
    assert len({pages[i : i + 4096] for i in range(0, len(pages), 4096)}) == -(-len(pages) // 4096)


def for_a_cache(folder: Path, size: str, least: int = 100_000_000) -> bytes:
    """Return the script for a host whose last-level cache has this size, with a smaller least size of weights."""
    every = {cpu: {3: ("Unified", size, "0-4095")} for cpu in os.sched_getaffinity(0)}
    text = SCRIPT.read_text()
    for name, value in (("CPUS", f"Path({str(caches(folder / 'cpus', every))!r})"), ("LEAST_BYTES", str(least))):
        text, count = re.subn(rf"^{name} = .*$", f"{name} = {value}", text, flags=re.MULTILINE)
        assert count == 1
    return text.encode()


def started(script: bytes, folder: Path, *options: str) -> subprocess.Popen[bytes]:
    """Start the script as the page does, from standard input."""
    process = subprocess.Popen(
        [sys.executable, "-", "--folder", str(folder), *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin
    process.stdin.write(script)
    process.stdin.close()
    process.stdin = None
    return process


def ended(process: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=HANG_S)
    assert b"Traceback" not in err
    return process.returncode, out.decode(), err.decode()


@pytest.mark.llama
def test_the_table_is_the_measured_rate_divided_by_what_a_token_reads(release: Release, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    # Four times this cache are more than the least size.
    script = for_a_cache(tmp_path, "51200K")
    options = ("--bin", str(release.bin), "--threads", "1", "--hosts", "2", "3")
    status, out, err = ended(started(script, folder, *options))
    assert status == 0, err
    assert list(folder.iterdir()) == []
    head, measured, _computed, _blank, titles, _line, *rows = out.splitlines()
    assert head.endswith(f"1 threads, llama.cpp {release.version}")
    found = re.fullmatch(
        r"Measured: ([\d.]+) \(([\d.]+) to ([\d.]+)\) tokens/s, of which each reads ([\d.]+) GB "
        r"\(([\d.]+) times the last-level cache\): ([\d.]+) GB/s\.",
        measured,
    )
    assert found, measured
    speed, least, most, gigabytes, times, rate = map(float, found.groups())
    assert least <= speed <= most
    assert 4 <= times < 8
    assert times == pytest.approx(gigabytes * 1e9 / (50 * MIB), abs=0.2)
    assert rate == pytest.approx(speed * gigabytes, rel=0.03)
    assert titles.endswith("| `tensor` on 2 | `tensor` on 3 |")
    assert [row.split(" | ")[0] for row in rows] == [f"| {name}" for name in host_speed.GB_A_TOKEN]
    for row in rows:
        _name, size, layer, *tensor = (cell.strip() for cell in row.strip("| ").split("|"))
        assert float(layer) == pytest.approx(rate / float(size), abs=0.06)
        assert [float(cell) for cell in tensor] == pytest.approx([2 * float(layer), 3 * float(layer)], abs=0.02)


def test_weights_that_the_cache_could_hold_are_refused(tmp_path: Path) -> None:
    program = tmp_path / "llama-bench"
    program.write_text("#!/bin/sh\necho it must not run >&2\nexit 3\n")
    program.chmod(0o755)
    # A terabyte, of which no host has eight.
    status, out, err = ended(started(for_a_cache(tmp_path, f"{1 << 30}K"), tmp_path, "--bin", str(tmp_path)))
    assert (status, out) == (1, "")
    assert "for weights 4 times as large as the last-level cache of 1099512 MB" in err
    assert list(tmp_path.glob("**/*.gguf")) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_measurement_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    program = tmp_path / "llama-bench"
    program.write_text('#!/bin/sh\n: >"${0%/*}/runs"\nexec sleep 600\n')
    program.chmod(0o755)
    folder = tmp_path / "model"
    folder.mkdir()
    process = started(for_a_cache(tmp_path, "1024K"), folder, "--bin", str(tmp_path))
    end = time.monotonic() + HANG_S
    while not (tmp_path / "runs").exists():
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.05)
    assert list(folder.glob("*/*.gguf"))
    process.send_signal(number)
    status, out, err = ended(process)
    assert (status, out, err) == (1, "", "interrupted; the model is removed.\n")
    assert list(folder.iterdir()) == []
