# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: a baseline is a JSON file with the figures of a run and with all that they depend on."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._run.worker_run import OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping


SCHEMA = "llama_cpp.cluster.llama_bench"
SCHEMA_VERSION = 1
# A thousand tests have some 300 kB.
MAX_BASELINE_BYTES = 16 << 20
_NUMBER = (int, float)
_OPTIONAL_TEXT = (str, type(None))
SHAPES: dict[str, dict[str, Any]] = {
    "build": {"number": (int, type(None)), "commit": _OPTIONAL_TEXT, "version": _OPTIONAL_TEXT},
    "model": {"type": str, "size_bytes": int, "n_params": int, "sha256": _OPTIONAL_TEXT},
    "options": {
        "split_mode": str,
        "tensor_split": list,
        "n_gpu_layers": int,
        "cache_type_k": str,
        "cache_type_v": str,
        "flash_attn": str,
        "threads": int,
    },
}
TEST_KEY = ("kind", "n_prompt", "n_gen", "n_depth", "batch_size", "ubatch_size")


class BaselineError(ValueError):
    """A baseline cannot be read or written; the message is one sentence."""


@dataclass(frozen=True)
class Baseline:
    """The figures of a run, and what they depend on."""

    build: dict[str, Any]
    model: dict[str, Any]
    workers: list[str]
    options: dict[str, Any]
    tests: list[dict[str, Any]]
    # When the run ended, in UTC (ISO 8601).
    created: str


def check_baseline_options(path: str | None, *, update: bool, required: bool) -> None:
    """Raise OptionError for what cannot be meant of a baseline."""
    if path is None and (update or required):
        name = "baseline_update" if update else "baseline_required"
        raise OptionError(f"{name} is true and there is no baseline_path; give it, or leave {name} out.")
    if update and required:
        raise OptionError("baseline_update and baseline_required are both true; a baseline is replaced or insisted on.")


def _no_constant(name: str) -> float:
    raise ValueError(name)


def read_baseline(path: str) -> Baseline | None:
    """Return what a baseline file holds, or None if there is none; raises BaselineError."""
    file = Path(path)
    try:
        if file.is_dir():
            raise BaselineError(f"The baseline {path} is a folder; give the path of a file.")
        if not file.exists():
            return None
        if not file.is_file():
            raise BaselineError(f"The baseline {path} is not a file; give another path.")
        with file.open("rb") as stream:
            content = stream.read(MAX_BASELINE_BYTES)
    except OSError as error:
        raise BaselineError(f"The baseline {path} cannot be read: {error.strerror}.") from error
    remedy = "it was left as it is; move it away, or choose another path"
    try:
        # What is larger is cut off, and so is no JSON.
        found = json.loads(content.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise BaselineError(f"The baseline {path} is not JSON of this module, so {remedy}.") from None
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise BaselineError(f"The file {path} is not a baseline of llama_bench, so {remedy}.")
    if found.get("schema_version") != SCHEMA_VERSION:
        version = json.dumps(found.get("schema_version"))[:40]
        raise BaselineError(
            f"The baseline {path} is of schema version {version} and this collection knows {SCHEMA_VERSION}; {remedy}."
        )
    wrong = _wrong_part(found)
    if wrong:
        raise BaselineError(f"The baseline {path} is damaged ({wrong} is not as it was written); {remedy}.")
    return Baseline(**{name: found[name] for name in Baseline.__dataclass_fields__})


def _wrong_part(found: Mapping[str, Any]) -> str | None:
    """Return the first part of a baseline that is not as this module writes it."""
    for part, shape in SHAPES.items():
        values = found.get(part)
        if not isinstance(values, dict):
            return part
        for name, kind in shape.items():
            if name not in values or not isinstance(values[name], kind) or isinstance(values[name], bool):
                return f"{part}.{name}"
    # Baselines of earlier versions of this module do not tell.
    patches = found["build"].get("patches")
    if patches is not None and not are_texts(patches):
        return "build.patches"
    if not isinstance(found.get("created"), str):
        return "created"
    workers, tests = found.get("workers"), found.get("tests")
    if not are_texts(workers):
        return "workers"
    if not isinstance(tests, list) or not tests:
        return "tests"
    return next((f"tests[{n}]" for n, test in enumerate(tests) if not _is_test(test)), None)


def are_texts(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _is_test(test: object) -> bool:
    if not isinstance(test, dict) or not isinstance(test.get("name"), str) or not isinstance(test.get("kind"), str):
        return False
    rates = test.get("tokens_per_second")
    if not isinstance(rates, dict) or "stddev" not in rates:
        return False
    numbers: list[Any] = [*(test.get(name) for name in TEST_KEY[1:]), rates.get("mean"), rates["stddev"] or 0]
    # No token rate and no count is larger.
    return all(isinstance(n, _NUMBER) and not isinstance(n, bool) and 0 <= n < 1e12 for n in numbers) and numbers[5] > 0


def check_baseline_place(path: str) -> None:
    """Raise BaselineError if a baseline could not be written there."""
    folder = Path(path).resolve().parent
    if not folder.is_dir():
        raise BaselineError(f"There is no folder {folder} for the baseline; make it, or choose another path.")
    if not os.access(str(folder), os.W_OK | os.X_OK):
        raise BaselineError(f"The folder {folder} of the baseline cannot be written by this user; choose another path.")


def write_baseline(path: str, baseline: Baseline) -> None:
    """Write a baseline, which appears at its path only when it is whole; raises BaselineError."""
    content = {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, **asdict(baseline)}
    place = Path(path).resolve()
    temporary = None
    try:
        mode = place.stat().st_mode & 0o777 if place.exists() else 0o666 & ~_umask()
        handle, temporary = tempfile.mkstemp(prefix=f".{place.name[:100]}.", suffix=".new", dir=str(place.parent))
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(json.dumps(content, indent=2, sort_keys=True) + "\n")
            stream.flush()
            os.fchmod(stream.fileno(), mode)
            os.fsync(stream.fileno())
        Path(temporary).replace(place)
    except OSError as error:
        if temporary:
            with suppress(OSError):
                Path(temporary).unlink()
        raise BaselineError(f"The baseline {path} cannot be written: {error.strerror}.") from error


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
