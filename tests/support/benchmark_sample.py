# SPDX-License-Identifier: GPL-3.0-or-later
"""Results of modules for a benchmark over three workers, and its history: for tests of the report."""

from __future__ import annotations

import json
from typing import Any

MIB = 1 << 20
GIB = 1 << 30
# A name of the greatest length, with characters that are markup in HTML, in Markdown or on a terminal.
HOSTILE = (
    "<script>alert(1)</script>\"'><img src=//192.0.2.9/x onerror=alert(1)> | `[x](//192.0.2.9)` \x1b[2J\u202e &amp; "
)


def speed(mean: float, stddev: float, runs: int = 5) -> dict[str, Any]:
    samples = [mean + stddev * (index - (runs - 1) / 2) for index in range(runs)]
    return {"mean": mean, "stddev": stddev, "min": min(samples), "max": max(samples), "samples": samples}


def figures(prompt: float, generation: float, *, spread: float = 0.02) -> list[dict[str, Any]]:
    common = {"n_depth": 0, "batch_size": 2048, "ubatch_size": 512}
    tests = (("pp512", "prompt", 512, 0, prompt), ("tg64", "generation", 0, 64, generation))
    return [
        {"name": name, "kind": kind, "n_prompt": n_prompt, "n_gen": n_gen, **common,
         "tokens_per_second": speed(mean, mean * spread)}
        for name, kind, n_prompt, n_gen, mean in tests
    ]  # fmt: skip


NAMES = [f"worker{number}.example.com" for number in (1, 2, 3)]
ENDPOINTS = [f"10.0.0.1{number}:50052" for number in (1, 2, 3)]
OPTIONS = {
    "split_mode": "layer",
    "tensor_split": [27, 27, 27],
    "n_gpu_layers": 999,
    "cache_type_k": "f16",
    "cache_type_v": "f16",
    "flash_attn": "auto",
    "threads": 8,
    "repetitions": 5,
}
MODEL = {
    "name": "Llama 3.1 70B Instruct",
    "architecture": "llama",
    "file_type": "Q4_K - Medium",
    "parameters": 70_553_706_496,
    "size_bytes": 42_520_395_776,
    "files": [{"path": "/srv/models/llama-3.1-70b-instruct-q4_k_m.gguf"}],
    "shape": {
        "layers": 80,
        "predict_layers": 0,
        "embedding_length": 8192,
        "heads": 64,
        "kv_heads": 8,
        "key_length": 128,
        "value_length": 128,
        "feed_forward_length": 28672,
        "experts": 0,
        "experts_used": 0,
        "expert_feed_forward_length": None,
        "context_length": 131072,
        "vocabulary": 128256,
    },
}
BUILD = {"version": "0.3.36-0c1e57098", "commit": "0c1e57098bba43ac29e6e3b677cdceebdd22334f"}
IDENTITY = {key: MODEL[key] for key in ("name", "file_type", "parameters", "size_bytes")}


def run(time: str, prompt: float, generation: float, commit: str = "0c1e57098", **changes: Any) -> dict[str, Any]:
    """Return a line of the history."""
    return {
        "schema_version": 1,
        "time": time,
        "build": {"commit": commit, "number": 1},
        "model": IDENTITY,
        "workers": ENDPOINTS,
        "options": OPTIONS,
        "tests": figures(prompt, generation),
        **changes,
    }


def history() -> list[dict[str, Any]]:
    """Return runs of an older build, of another model, and of this build."""
    small = {**IDENTITY, "name": "Llama 3.2 3B Instruct", "parameters": 3_212_749_888, "size_bytes": 2_019_377_696}
    return [
        *(
            run(f"2026-10-{3 + day:02}T02:10:00Z", 29.1 + day % 3 * 0.6, 2.11 + day % 2 * 0.04, "4227c9be8")
            for day in range(6)
        ),
        *(run(f"2026-10-{12 + day:02}T02:10:00Z", 34.4 + day % 4 * 0.5, 2.31 + day % 3 * 0.03) for day in range(5)),
        run("2026-10-18T14:32:00Z", 41.0, 3.2, model=small),
        *(run(f"2026-11-{1 + day:02}T02:10:00Z", 35.9 + day % 3 * 0.4, 2.36 + day % 2 * 0.03) for day in range(7)),
    ]


def lines(runs: list[dict[str, Any]]) -> str:
    """Return the text of a history."""
    return "".join(json.dumps(line) + "\n" for line in runs)


def results(**changes: Any) -> dict[str, Any]:
    """Return all data that a report is made from."""
    found = _results(**changes)
    return {**found, "history": lines(found["history"])}


def device(
    name: str, endpoint: str | None, layers: int, model: float, kv: float | None, compute: float
) -> dict[str, Any]:
    keys = ("name", "endpoint", "layers", "model_buffer_mib", "kv_buffer_mib", "compute_buffer_mib")
    return dict(zip(keys, (name, endpoint, layers, model, kv, compute)))


def _results(**changes: Any) -> dict[str, Any]:
    layers = [(0, 27), (27, 27), (54, 26)]
    planned = [
        (13_900 * MIB, 1_728 * MIB, 584 * MIB),
        (13_900 * MIB, 1_728 * MIB, 584 * MIB),
        (13_711 * MIB, 1_664 * MIB, 690 * MIB),
    ]
    held = [(13_901.2, 1_728.0, 610.0), (13_901.2, 1_728.0, 610.0), (13_712.0, 1_664.0, 704.5)]
    available = [29 * GIB, 28 * GIB, 30 * GIB]
    return {
        "title": "",
        "time": "2026-11-21T19:42:02Z",
        "bench": {
            "build": {"number": 1, "commit": "0c1e57098", "version": None},
            "model": {"path": MODEL["files"][0]["path"], "type": "llama 70B Q4_K - Medium"},
            "workers": ENDPOINTS,
            "options": OPTIONS,
            "tests": figures(38.4, 2.51, spread=0.012),
            "failure": None,
        },
        "run": {
            "devices": [
                device("CPU", None, 0, 563.6, None, 32.0),
                *(device(f"RPC{index}", ENDPOINTS[index], layers[index][1], *mib) for index, mib in enumerate(held)),
            ],
            "perf": {
                "load": {"time_ms": 241_300.5},
                "prompt_eval": {"tokens_per_second": 21.0},
                "eval": {"tokens_per_second": 2.49},
            },
            "wall_time_ms": 274_020.0,
        },
        "plan": {
            "fits": True,
            "message": "The model fits: each worker keeps at least 9.7 GiB.",
            "tensor_split": [27, 27, 27],
            "workers": [
                {
                    "endpoint": ENDPOINTS[index],
                    "first_layer": layers[index][0],
                    "layers": layers[index][1],
                    "has_output": index == 2,
                    "weights_bytes": weights,
                    "kv_bytes": kv,
                    "compute_bytes": compute,
                    "total_bytes": weights + kv + compute,
                    "memory_available_bytes": available[index],
                    "reserve_bytes": 2 * GIB,
                    "headroom_bytes": available[index] - 2 * GIB - weights - kv - compute,
                }
                for index, (weights, kv, compute) in enumerate(planned)
            ],
            "master": {
                "layers": 0,
                "weights_bytes": 563 * MIB,
                "kv_bytes": 0,
                "compute_bytes": 31 * MIB,
                "total_bytes": 594 * MIB,
            },
        },
        "model": MODEL,
        "workers": [
            {"endpoint": endpoint, "state": "ready", "protocol": {"version": "7.0.0"}, "devices": []}
            for endpoint in ENDPOINTS
        ],
        "hosts": [
            {
                "name": "master.example.com",
                "master": True,
                "endpoints": [],
                "architecture": "x86_64",
                "cores": 8,
                "memory_total_bytes": 16 * GIB,
                "memory_available_bytes": 13 * GIB,
                **BUILD,
            },
            *(
                {
                    "name": NAMES[index],
                    "master": False,
                    "endpoints": [ENDPOINTS[index]],
                    "architecture": "aarch64",
                    "cores": 16,
                    "threads": [16],
                    "memory_total_bytes": 32 * GIB,
                    "memory_available_bytes": available[index],
                    **BUILD,
                }
                for index in range(3)
            ),
        ],
        "history": history(),
        "settings": {"repetitions": 5, "ctx_size": 5376},
        **changes,
    }


def hostile() -> dict[str, Any]:
    """Return the same data with harmful names wherever a text comes from outside."""
    text = json.dumps(_results())
    for name in (
        *NAMES,
        *ENDPOINTS,
        "master.example.com",
        MODEL["name"],
        MODEL["file_type"],
        MODEL["architecture"],
        MODEL["files"][0]["path"],
        "0.3.36-0c1e57098",
        "aarch64",
        "The model fits",
    ):
        text = text.replace(json.dumps(name)[1:-1], json.dumps(name + HOSTILE)[1:-1])
    found: dict[str, Any] = json.loads(text)
    found["history"] = lines(found["history"])
    found["title"] = HOSTILE
    found["bench"]["build"]["commit"] = HOSTILE
    return found
