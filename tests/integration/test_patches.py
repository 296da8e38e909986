# SPDX-License-Identifier: GPL-3.0-or-later
"""The role `llama_cpp` applies patches to the source, and results contain what a patched worker reports.

The source, the patches and the worker's report are stand-ins; releases.yml builds the real ones.
"""

from __future__ import annotations

import json
import os
import subprocess
from difflib import unified_diff
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.fleet import Fleet
from support.harness import play_here
from support.stand_in_source import FAKE, archive

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.harness import Release, Worker

MAIN = (FAKE / "main.cpp").read_text()
# The program prints a text that is in a file of the first patch.
FIRST = MAIN.replace("const char * commit", '#include "words/first.h"\nconst char * commit').replace(
    "0 (", '0" FIRST " ('
)
SECOND = FIRST.replace("FIRST", 'FIRST " and second"')


def diff(old: str, new: str, path: str = "main.cpp") -> str:
    return "".join(unified_diff(old.splitlines(True), new.splitlines(True), f"a/{path}", f"b/{path}"))


def words(text: str) -> str:
    """Return the diff that adds the file with these words."""
    lines = unified_diff([], [f'#define FIRST " {text}"\n'], "/dev/null", "b/words/first.h")
    return "".join(lines)


def said(fleet: Fleet, host: str) -> str:
    """Return the first line that a host's program prints."""
    server = fleet.current(host) / "bin/rpc-server"
    return subprocess.run([server], capture_output=True, text=True, check=True, timeout=10).stderr.splitlines()[0]


@pytest.mark.long
def test_patches_are_applied_or_refused_before_anything_is_built(tmp_path: Path) -> None:
    """Each host but the first has patches that are refused, each for another reason."""
    fleet = Fleet(tmp_path, archive(tmp_path / "source.tar.gz"))
    sha256 = fleet.variables["llama_cpp_archive_sha256"]
    # Tasks look for their files in the folder of the playbook.
    folder = tmp_path / "files"
    folder.mkdir()

    def patch(name: str, text: str, origin: str = f"sha256:{sha256}") -> str:
        (folder / f"{name}.patch").write_text(f"SPDX-License-Identifier: MIT\nMade-for: {origin}\nWhy.\n{text}")
        return f"{folder}/{name}.patch"

    first = patch("first", diff(MAIN, FIRST) + words("first"))
    second = patch("second", diff(FIRST, SECOND))
    bad = {
        "swapped": [second, first],
        "other": [patch("other", diff(MAIN, FIRST), f"commit:{'1' * 40}")],
        "missing": ["nowhere.patch"],
        "unknown": ["rpc-unpack"],
        "evil": [patch("evil", diff(MAIN, FIRST, "../../main.cpp"))],
        "text": first,
    }
    artifact = {"llama_cpp_artifact": "x", "llama_cpp_artifact_sha256": sha256}
    fleet.hosts = {
        "both": {"llama_cpp_patches": [first, "second.patch"]},
        **{host: {"llama_cpp_patches": patches} for host, patches in bad.items()},
        "given": {**artifact, "llama_cpp_patches": [first]},
    }
    refused = list(fleet.hosts)[1:]
    for host in refused:
        fleet.has_an_older_release(host)
    run = fleet.run(*fleet.hosts)
    fleet.failed(run, "swapped", "The patch second does not apply to main.cpp: hunk 1")
    fleet.failed(
        run,
        "other",
        f"The patch other is made for commit:{'1' * 40}, and the pinned source is",
        f"(sha256:{sha256}, commit:a",
    )
    fleet.failed(run, "missing", "The patch nowhere.patch does not exist on the controller")
    fleet.failed(run, "unknown", "There is no patch rpc-unpack of this collection's own")
    fleet.failed(run, "evil", "The patch evil is refused: it changes 'a/../../main.cpp'")
    fleet.failed(run, "text", "llama_cpp_patches lists; on the command line give them as JSON")
    fleet.failed(run, "given", "llama_cpp_patches is for what is built")
    for host in refused:
        assert fleet.is_as_it_was(host), host
    assert run.text.count("failed=0") == 1, run.text
    version = "version: 0{} (abcdef012)"
    assert said(fleet, "both") == version.format(" first and second")
    made = fleet.record("both")["manifest"]["patches"]
    assert [patch["name"] for patch in made] == ["first", "second"]

    # After a failure, the next run begins with a clean source. Other words make another release, and so does stock.
    fleet.hosts["swapped"] = fleet.hosts["both"]
    patch("first", diff(MAIN, FIRST) + words("other"))
    run = fleet.run("swapped")
    assert run.code == 0, run.text
    assert said(fleet, "swapped") == version.format(" other and second")
    assert fleet.release("swapped") != fleet.release("both")
    changed = fleet.record("swapped")["manifest"]["patches"]
    assert (changed[0] != made[0], changed[1]) == (True, made[1])
    run = fleet.run("swapped", options=("--check",), llama_cpp_patches=[])
    assert run.holds("would be built with rpc-server"), run.text


# The program sees a tree above these folders of the machine. No other process sees it.
SEES = """
for place in var/lib run; do
    mount -t overlay -o "lowerdir=$0/$place:/$place" overlay "/$place" || exit 1
done
exec "$@"
"""


def what_a_service_writes(tree: Path, port: int, status: dict[str, object]) -> None:
    """Write a status of a port's service where the service and systemd would write it."""
    start = "0123456789abcdef0123456789abcdef"
    said, units = tree / "var/lib/llama_cpp", tree / "run/systemd/units"
    for folder in said, units:
        folder.mkdir(parents=True)
    (said / f"status-{port}.json").write_text(json.dumps({"invocation": start, **status}))
    (units / f"invocation:llama-rpc-server@{port}.service").symlink_to(start)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a program other folders")
def test_what_workers_have_repacked_is_in_the_report(
    release_7: Release,
    start_worker: Callable[..., Worker],
    model: Path,
    tmp_path: Path,
) -> None:
    """Of two workers of a patched release, one reports nothing."""
    ports = [start_worker(release_7).port for _worker in range(2)]
    repack = {"enabled": True, "kernels": True, "weights": 12, "mib": 9.5, "of_weights": 20, "of_mib": 12.25}
    tree = tmp_path / "machine"
    what_a_service_writes(tree, ports[0], {"repack": repack})
    current = tmp_path / "prefix" / "current"
    current.mkdir(parents=True)
    (current / "bin").symlink_to(release_7.bin)
    manifest = json.loads((release_7.prefix / "current" / "manifest.json").read_text())
    (current / "manifest.json").write_text(json.dumps({**manifest, "patches": [{"name": "rpc-repack", "sha256": "1"}]}))
    host = {
        "rpc_server_address": "127.0.0.1",
        "rpc_server_bind_address": "127.0.0.1",
        "rpc_server_instances": [{"port": port} for port in ports],
        "llama_cpp_prefix": str(tmp_path / "prefix"),
        "gguf_model_path": str(model),
        "inference_report_path": str(tmp_path / "report.json"),
        "inference_n_predict": 4,
        "inference_plan": False,
    }
    sees = ("unshare", "--mount", "--propagation", "private", "sh", "-c", SEES, str(tree))
    done = play_here("infer.yml", tmp_path, host, prefix=sees)
    assert done.returncode == 0, done.stdout
    devices = json.loads((tmp_path / "report.json").read_text())["inference"]["devices"]
    assert {device["endpoint"]: device["repacked_mib"] for device in devices} == {
        f"127.0.0.1:{ports[0]}": 9.5, f"127.0.0.1:{ports[1]}": None, None: None,
    }  # fmt: skip
    assert "; 9.5 of " in done.stdout
    assert "changed=0" in done.stdout
