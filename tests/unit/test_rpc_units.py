# SPDX-License-Identifier: GPL-3.0-or-later
"""What of the workers is on a host: unit files, the release in use, the account."""

from __future__ import annotations

import hashlib
import json
import os
import pwd
from pathlib import Path

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._rpc_units import (
    Unit,
    read_account,
    read_release,
    read_repack,
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


def test_a_folder_that_is_not_there_has_no_units(tmp_path: Path) -> None:
    assert read_units(tmp_path / "none") == []


@pytest.mark.parametrize(
    ("made", "found"),
    [
        ("nothing", {"id": None, "program": False}),
        ("release", {"id": "1-abc", "program": True}),
        ("release-of-a-master", {"id": "1-abc", "program": False}),
        ("dangling-link", {"id": "1-abc", "program": False}),
        ("folder", {"id": None, "program": True}),
    ],
)
def test_the_release_in_use(tmp_path: Path, made: str, found: dict[str, object]) -> None:
    folder = tmp_path / ("current" if made == "folder" else "releases/1-abc")
    if made.startswith("release") or made == "folder":
        (folder / "bin").mkdir(parents=True)
        (folder / "bin/rpc-server").touch(mode=0o644 if made == "release-of-a-master" else 0o755)
    if made not in ("nothing", "folder"):
        (tmp_path / "current").symlink_to("releases/1-abc")
    assert read_release(str(tmp_path)) == found


def test_an_account_is_known_by_its_name() -> None:
    own = pwd.getpwuid(os.getuid())
    assert read_account(own.pw_name) == {"uid": own.pw_uid, "comment": own.pw_gecos}
    assert read_account("no-such-account") is None


REPACK = {"enabled": True, "kernels": True, "weights": 12, "mib": 345.67, "of_weights": 20, "of_mib": 456}


def said(folder: Path, text: str) -> Path:
    path = folder / "llama-rpc-server-50052" / "status.json"
    path.parent.mkdir()
    path.write_text(text)
    return path


def test_what_a_worker_says_of_repacked_weights_is_read(tmp_path: Path) -> None:
    assert read_repack(50052, tmp_path) is None, "stock upstream says nothing"
    said(tmp_path, json.dumps({"repack": {**REPACK, "more": "x"}, "more": 1}))
    found = read_repack(50052, tmp_path)
    assert found == REPACK
    assert found is not None
    assert [type(value) for value in found.values()] == [bool, bool, int, float, int, float]
    assert read_repack(50053, tmp_path) is None


NONSENSE = {
    "empty": "",
    "no-json": "hm",
    "half": json.dumps({"repack": REPACK})[:-9],
    "list": "[1]",
    "no-repack": "{}",
    "text-for-it": '{"repack": "yes"}',
    "value-missing": json.dumps({"repack": {**REPACK, "mib": None}}),
    "number-for-a-truth-value": json.dumps({"repack": {**REPACK, "enabled": 1}}),
    "truth-value-for-a-number": json.dumps({"repack": {**REPACK, "weights": True}}),
    "part-of-a-weight": json.dumps({"repack": {**REPACK, "weights": 1.5}}),
    "less-than-nothing": json.dumps({"repack": {**REPACK, "mib": -1}}),
    "no-number": json.dumps({"repack": {**REPACK, "mib": float("nan")}}),
    "no-end": json.dumps({"repack": {**REPACK, "mib": float("inf")}}),
    "beyond-any-host": '{"repack": {"weights": 1%s}}' % ("0" * 3000),
    "too-long": json.dumps({"repack": REPACK}) + " " * 5000,
    "too-deep": "[" * 4000,
    "no-text": '{"repack": "\udcff"}',
}


@pytest.mark.parametrize("text", NONSENSE.values(), ids=NONSENSE.keys())
def test_nonsense_of_a_worker_is_nothing(tmp_path: Path, text: str) -> None:
    said(tmp_path, "").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert read_repack(50052, tmp_path) is None


def test_no_link_is_followed_and_no_pipe_waited_for(tmp_path: Path) -> None:
    path = said(tmp_path, "")
    path.unlink()
    (tmp_path / "other").write_text(json.dumps({"repack": REPACK}))
    path.symlink_to(tmp_path / "other")
    assert read_repack(50052, tmp_path) is None
    path.unlink()
    os.mkfifo(path)
    assert read_repack(50052, tmp_path) is None
