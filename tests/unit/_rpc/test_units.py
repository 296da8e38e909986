# SPDX-License-Identifier: GPL-3.0-or-later
"""The parts of the workers on a host: unit files, the release in use, the account."""

from __future__ import annotations

import hashlib
import json
import os
import pwd
from pathlib import Path

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc.units import (
    Unit,
    read_account,
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
    for name in ("llama-rpc-server@50099.service", "llama-rpc-server@50052.service"):
        (tmp_path / name).write_text(name)
        (tmp_path / name).chmod(0o640)
    for name in ("llama-rpc-server@.service", "llama-rpc-server@a.service", "llama-rpc-server@1.service.old"):
        (tmp_path / name).touch()
    digest = hashlib.sha256(b"llama-rpc-server@50052.service").hexdigest()
    first, second = read_units(tmp_path)
    assert first == Unit("llama-rpc-server@50052.service", 50052, digest, "0640", os.getuid(), os.getgid())
    assert second.port == 50099


def test_the_link_of_a_masked_unit_is_there_and_has_no_digest(tmp_path: Path) -> None:
    (tmp_path / "llama-rpc-server@50052.service").symlink_to("/dev/null")
    (unit,) = read_units(tmp_path)
    assert (unit.port, unit.sha256) == (50052, None)


def test_units_that_look_after_workers_are_no_workers(tmp_path: Path) -> None:
    names = ["llama-rpc-resume.service", "llama-rpc-resume.timer", "llama-rpc-cache@50052.service"]
    names += ["llama-rpc-cache@50052.timer", "llama-rpc-cache@50099.timer"]
    for name in [*names, "llama-rpc-cache@x.timer", "llama-rpc-cache@50052.timer.old", "llama-rpc-resume@1.timer"]:
        (tmp_path / name).touch()
    found = read_timed_units(tmp_path)
    assert [unit.name for unit in found] == names
    assert [unit.port for unit in found] == [0, 0, 50052, 50052, 50099]
    assert read_units(tmp_path) == []


def test_a_folder_that_is_not_there_has_no_units(tmp_path: Path) -> None:
    assert read_units(tmp_path / "none") == []


@pytest.mark.parametrize(
    ("made", "found"),
    [
        ("nothing", {"id": None, "program": False, "cache_program": False}),
        ("release", {"id": "1-abc", "program": True, "cache_program": False}),
        ("release-with-cache", {"id": "1-abc", "program": True, "cache_program": True}),
        ("release-of-a-master", {"id": "1-abc", "program": False, "cache_program": False}),
        ("dangling-link", {"id": "1-abc", "program": False, "cache_program": False}),
        ("folder", {"id": None, "program": True, "cache_program": False}),
    ],
)
def test_the_release_in_use(tmp_path: Path, made: str, found: dict[str, object]) -> None:
    folder = tmp_path / ("current" if made == "folder" else "releases/1-abc")
    if made.startswith("release") or made == "folder":
        (folder / "bin").mkdir(parents=True)
        (folder / "bin/rpc-server").touch(mode=0o644 if made == "release-of-a-master" else 0o755)
    if made == "release-with-cache":
        (folder / "libexec").mkdir()
        (folder / "libexec/rpc-cache").touch(mode=0o755)
    if made not in ("nothing", "folder"):
        (tmp_path / "current").symlink_to("releases/1-abc")
    assert read_release(str(tmp_path)) == {**found, "upgrade": False}
    (tmp_path / "upgrade.json").touch()
    assert read_release(str(tmp_path)) == {**found, "upgrade": True}


def test_an_account_is_known_by_its_name() -> None:
    own = pwd.getpwuid(os.getuid())
    assert read_account(own.pw_name) == {"uid": own.pw_uid, "comment": own.pw_gecos}
    assert read_account("no-such-account") is None


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


def test_what_a_worker_says_of_repacked_weights_is_read(tmp_path: Path) -> None:
    assert read_repack(50052, tmp_path) is None, "stock upstream says nothing"
    said(tmp_path, status({**REPACK, "more": "x"}, more=1))
    found = read_repack(50052, tmp_path)
    assert found == REPACK
    assert found is not None
    assert [type(value) for value in found.values()] == [bool, bool, int, float, int, float]
    assert read_repack(50053, tmp_path) is None


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


NONSENSE = {
    "empty": "",
    "no-json": "hm",
    "half": status(REPACK)[:-9],
    "list": "[1]",
    "no-repack": json.dumps({"invocation": START}),
    "text-for-it": status("yes"),
    "value-missing": status({**REPACK, "mib": None}),
    "number-for-a-truth-value": status({**REPACK, "enabled": 1}),
    "truth-value-for-a-number": status({**REPACK, "weights": True}),
    "part-of-a-weight": status({**REPACK, "weights": 1.5}),
    "less-than-nothing": status({**REPACK, "mib": -1}),
    "no-number": status({**REPACK, "mib": float("nan")}),
    "no-end": status({**REPACK, "mib": float("inf")}),
    "beyond-any-host": status({**REPACK, "weights": "many"}).replace('"many"', "1" + "0" * 3000),
    "too-long": status(REPACK) + " " * 5000,
    "too-deep": "[" * 4000,
    "no-text": status(REPACK, more="x").replace("x", "\udcff"),
}


@pytest.mark.parametrize("text", NONSENSE.values(), ids=NONSENSE.keys())
def test_nonsense_of_a_worker_is_nothing(tmp_path: Path, text: str) -> None:
    said(tmp_path, "").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert read_repack(50052, tmp_path) is None


def test_no_link_is_followed_and_no_pipe_waited_for(tmp_path: Path) -> None:
    path = said(tmp_path, "")
    path.unlink()
    (tmp_path / "other").write_text(status(REPACK))
    path.symlink_to(tmp_path / "other")
    assert read_repack(50052, tmp_path) is None
    path.unlink()
    os.mkfifo(path)
    assert read_repack(50052, tmp_path) is None


def test_where_figures_are_linked_to_is_what_their_unit_says(tmp_path: Path) -> None:
    assert read_metrics(tmp_path) is None
    unit = tmp_path / "llama-rpc-metrics.service"
    unit.write_text("[Unit]\nX-TextfileFolder=/var/lib/node_exporter\n")
    half = {"folder": "/var/lib/node_exporter", "units": ["llama-rpc-metrics.service"]}
    assert read_metrics(tmp_path) == half, "as after a run that was ended"
    (tmp_path / "llama-rpc-metrics.timer").touch()
    found = read_metrics(tmp_path)
    assert found is not None
    assert found["units"] == ["llama-rpc-metrics.timer", "llama-rpc-metrics.service"]
    unit.write_text("[Unit]\nX-TextfileFolder=relative\n")
    assert read_metrics(tmp_path) is None, "somebody else's unit of that name"


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
    found = read_cache(50052, tmp_path, tmp_path / "state")
    assert found is not None
    assert found.pop("free_bytes") > 0
    assert found == {"folder": str(folder), "entries": 2, "bytes": 3500, **said}


def test_since_when_a_cache_is_kept_in_order(tmp_path: Path) -> None:
    caching(tmp_path)
    timer = tmp_path / "llama-rpc-cache@50052.timer"
    timer.touch()
    os.utime(timer, (5, 1750000000))
    found = read_cache(50052, tmp_path, tmp_path / "state")
    assert found is not None
    assert (found["kept_since"], found["tidied_at"]) == (1750000000, None)


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
