# SPDX-License-Identifier: GPL-3.0-or-later
"""The parts of the workers on a host: unit files, the release in use, the account."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc.units import (
    Unit,
    read_cache,
    read_cache_use,
    read_caches,
    read_metrics,
    read_release,
    read_repack,
    read_timed_units,
    read_units,
)


def test_units_come_by_port_and_other_files_are_none(tmp_path: Path) -> None:
    timed = ["llama-rpc-resume.service", "llama-rpc-resume.timer", "llama-rpc-cache@50052.service"]
    timed += ["llama-rpc-cache@50052.timer", "llama-rpc-cache@50099.timer"]
    none = ["llama-rpc-server@.service", "llama-rpc-server@a.service", "llama-rpc-server@1.service.old"]
    none += ["llama-rpc-cache@x.timer", "llama-rpc-cache@50052.timer.old", "llama-rpc-resume@1.timer"]
    name = "llama-rpc-server@50052.service"
    for file in (name, *timed, *none):
        (tmp_path / file).write_text(file)
    (tmp_path / name).write_text("[Service]\nEnvironment=LLAMA_CPP_CLUSTER_UNIT=3f78\n")
    (tmp_path / name).chmod(0o640)
    digest = hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
    # The link of a masked unit is there and has no digest.
    (tmp_path / "llama-rpc-server@50099.service").symlink_to("/dev/null")
    first, second = read_units(tmp_path)
    assert first == Unit(name, 50052, digest, of_root=False, mark="3f78")
    assert (second.port, second.sha256) == (50099, None)
    found = [(unit.name, unit.port) for unit in read_timed_units(tmp_path)]
    assert found == list(zip(timed, [0, 0, 50052, 50052, 50099]))
    assert read_units(tmp_path / "none") == []


RUNS = "bin/rpc-server", 0o755
CACHES = "libexec/rpc-cache", 0o755


@pytest.mark.parametrize(
    ("folder", "link", "made", "found"),
    [
        ("releases/1-abc", False, [], (None, False, False)),
        ("releases/1-abc", True, [RUNS], ("1-abc", True, False)),
        ("releases/1-abc", True, [RUNS, CACHES], ("1-abc", True, True)),
        ("releases/1-abc", True, [("bin/rpc-server", 0o644)], ("1-abc", False, False)),
        ("releases/1-abc", True, [], ("1-abc", False, False)),
        ("current", False, [RUNS], (None, True, False)),
    ],
    ids=["nothing", "release", "with-cache", "of-a-master", "dangling-link", "folder"],
)
def test_the_release_in_use(
    tmp_path: Path, folder: str, link: bool, made: list[tuple[str, int]], found: tuple[str | None, bool, bool]
) -> None:
    for name, mode in made:
        (tmp_path / folder / name).parent.mkdir(parents=True)
        (tmp_path / folder / name).touch(mode=mode)
    if link:
        (tmp_path / "current").symlink_to(folder)
    expected = dict(zip(("id", "program", "cache_program"), found))
    assert read_release(str(tmp_path)) == {**expected, "upgrade": False}
    (tmp_path / "upgrade.json").touch()
    assert read_release(str(tmp_path)) == {**expected, "upgrade": True}


REPACK = {"enabled": True, "kernels": True, "weights": 12, "mib": 345.67, "of_weights": 20, "of_mib": 456}


START = "0123456789abcdef0123456789abcdef"


def said(root: Path, text: str, start: str | None = START) -> Path:
    """Write a worker's report, and systemd's ID of the current start of its unit."""
    folder = root / "run/systemd/units"
    folder.mkdir(parents=True)
    if start is not None:
        (folder / "invocation:llama-rpc-server@50052.service").symlink_to(start)
    path = root / "var/lib/llama_cpp/status-50052.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


def status(repack: object, **more: object) -> str:
    return json.dumps({"invocation": START, "repack": repack, **more})


def test_what_a_worker_says_of_repacked_weights_is_read_and_no_link_or_pipe(tmp_path: Path) -> None:
    assert read_repack(50052, tmp_path) is None, "stock upstream says nothing"
    path = said(tmp_path, status({**REPACK, "more": "x"}, more=1))
    found = read_repack(50052, tmp_path)
    assert found is not None
    assert {key: (value, type(value)) for key, value in found.items()} == {
        key: (value, type(value) if key != "of_mib" else float) for key, value in REPACK.items()
    }
    path.rename(tmp_path / "other")
    path.symlink_to(tmp_path / "other")
    assert read_repack(50052, tmp_path) is None
    path.unlink()
    os.mkfifo(path)
    assert read_repack(50052, tmp_path) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        status(REPACK)[:-9],
        "[1]",
        json.dumps({"invocation": START}),
        status("yes"),
        *(
            status({**REPACK, key: value})
            for key, value in (
                ("mib", None), ("enabled", 1), ("weights", True), ("weights", 1.5), ("mib", -1), ("mib", float("nan")),
                ("mib", float("inf")),
            )
        ),
        status({**REPACK, "weights": "many"}).replace('"many"', "1" + "0" * 3000),
        status(REPACK) + " " * 5000,
        "[" * 4000,
        status(REPACK, more="x").replace("x", "\udcff"),
    ],
    ids=[
        "empty", "half", "list", "no-repack", "text-for-it", "value-missing", "number-for-a-truth-value",
        "truth-value-for-a-number", "part-of-a-weight", "less-than-nothing", "no-number", "no-end", "beyond-any-host",
        "too-long", "too-deep", "no-text",
    ],
)  # fmt: skip
def test_nonsense_of_a_worker_is_nothing(tmp_path: Path, text: str) -> None:
    said(tmp_path, "").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert read_repack(50052, tmp_path) is None


def test_what_a_worker_says_of_the_use_of_its_cache_is_read(tmp_path: Path) -> None:
    use = {"hits": 3, "hit_bytes": 4096, "misses": 1, "damaged": 0}
    path = said(tmp_path, "").with_name("cache-50052.json")
    assert read_cache_use(50052, tmp_path) is None, "stock upstream says nothing"
    path.write_text(json.dumps({"invocation": START, "use": {**use, "more": 1}}))
    assert read_cache_use(50052, tmp_path) == use
    path.write_text(json.dumps({"invocation": START, "use": {**use, "misses": -1}}))
    assert read_cache_use(50052, tmp_path) is None
    path.write_text(json.dumps({"invocation": START[::-1], "use": use}))
    assert read_cache_use(50052, tmp_path) is None


@pytest.mark.parametrize("start", [None, "f" + START[1:]], ids=["no-unit-runs", "another-start"])
@pytest.mark.parametrize("invocation", [START, "", None, []], ids=repr)
def test_what_an_earlier_process_has_left_is_nothing(tmp_path: Path, start: str | None, invocation: object) -> None:
    said(tmp_path, status(REPACK, invocation=invocation), start)
    assert read_repack(50052, tmp_path) is None


def test_where_figures_are_linked_to_is_what_their_unit_says(tmp_path: Path) -> None:
    unit = tmp_path / "llama-rpc-metrics.service"
    found = [read_metrics(tmp_path)]
    unit.write_text("[Unit]\nX-TextfileFolder=/var/lib/node_exporter\n")
    found.append(read_metrics(tmp_path))
    (tmp_path / "llama-rpc-metrics.timer").touch()
    found.append(read_metrics(tmp_path))
    unit.write_text("[Unit]\nX-TextfileFolder=relative\n")
    found.append(read_metrics(tmp_path))
    folder = "/var/lib/node_exporter"
    half = {"folder": folder, "units": [unit.name]}  # as after a run that was ended
    whole = {"folder": folder, "units": ["llama-rpc-metrics.timer", unit.name]}
    assert found == [None, half, whole, None], "the last is somebody else's unit of that name"


TIDIED = {"time": 1760000000, "entries": 9, "max_bytes": 5000, "min_free_bytes": 10, "corrupted": 1, "evicted": 2}
UNTIDIED = dict.fromkeys(("max_bytes", "min_free_bytes", "kept_since", "tidied_at", "corrupted", "evicted"))
SAID = {**UNTIDIED, "max_bytes": 5000, "min_free_bytes": 10, "tidied_at": 1760000000, "corrupted": 1, "evicted": 2}


def caching(tmp_path: Path) -> Path:
    """Make a worker's unit and its cache, with two entries and other files; return the folder of the entries."""
    folder = tmp_path / "cache" / "rpc"
    folder.mkdir(parents=True)
    (tmp_path / "llama-rpc-server@50052.service").write_text(
        f"[Service]\nEnvironment=GGML_NO_BACKTRACE=1\nEnvironment=LLAMA_CACHE={tmp_path}/cache\n"
    )
    for name, size in (("0123456789abcdef", 3000), ("f" * 16, 500), (".part-0123456789abcdef-7", 70), ("F" * 16, 9)):
        (folder / name).write_bytes(b"x" * size)
    (folder / ("a" * 16)).symlink_to("/etc/passwd")
    (folder / ("b" * 16)).mkdir()
    return folder


@pytest.mark.parametrize(
    ("status", "said"),
    [
        pytest.param(json.dumps(TIDIED), SAID, id="tidied"),
        pytest.param(json.dumps({**TIDIED, "max_bytes": 0}), {**SAID, "max_bytes": None}, id="without-a-limit"),
        pytest.param(None, UNTIDIED, id="not-yet"),
        pytest.param("{", UNTIDIED, id="broken"),
        pytest.param("[1]", UNTIDIED, id="a-list"),
        pytest.param(json.dumps({**TIDIED, "corrupted": "<b>"}), UNTIDIED, id="text-for-a-number"),
    ],
)
def test_what_is_in_the_cache(tmp_path: Path, status: str | None, said: dict[str, object]) -> None:
    folder = caching(tmp_path)
    if status is not None:
        (tmp_path / "state/50052").mkdir(parents=True)
        (tmp_path / "state/50052/status.json").write_text(status)
    timer = tmp_path / "llama-rpc-cache@50052.timer"
    timer.touch()
    os.utime(timer, (5, 1750000000))
    found = read_cache(50052, tmp_path, tmp_path / "state")
    assert found is not None
    assert found.pop("free_bytes") > 0
    assert found == {"folder": str(folder), "entries": 2, "bytes": 3500, **said, "kept_since": 1750000000}


@pytest.mark.parametrize("lacking", ["unit", "cache", "folder"])
def test_a_worker_without_a_cache(tmp_path: Path, lacking: str) -> None:
    folder = caching(tmp_path)
    unit = tmp_path / "llama-rpc-server@50052.service"
    if lacking == "unit":
        unit.unlink()
    elif lacking == "cache":
        unit.write_text("[Service]\n")
    else:
        # An intruder of the worker may put a link in place of the folder. It is not followed.
        folder.rename(tmp_path / "other")
        folder.symlink_to(tmp_path / "other")
    found = read_cache(50052, tmp_path, tmp_path / "state")
    assert found == ({"folder": str(folder), "entries": 0, "bytes": 0, "free_bytes": None, **UNTIDIED}
                     if lacking == "folder" else None)  # fmt: skip


def test_caches_of_workers_that_are_gone_are_seen_and_nothing_else(tmp_path: Path) -> None:
    assert read_caches(tmp_path / "none") == []
    for name in ("rpc", "50053", "50052", "lost+found", "0", "backup"):
        (tmp_path / name).mkdir()
    assert read_caches(tmp_path) == ["50052", "50053", "rpc"]
