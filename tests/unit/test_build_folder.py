# SPDX-License-Identifier: GPL-3.0-or-later
"""Two runs with one builder: the owner of a build's folder, and the cleanup after a dead run."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "roles" / "llama_cpp" / "files" / "build_folder.sh"
WAIT = 75


@dataclass
class Builds:
    """The folder of all builds, in a prefix that has other files."""

    folder: Path

    def call(self, run: str, verb: str, *more: str, key: str = "key") -> tuple[int, str]:
        environment = {"PATH": os.environ["PATH"], "BUILDS": str(self.folder), "KEY": key, "OWNER": run, "LAPSES": "60"}
        done = subprocess.run(
            ["sh", "-c", SCRIPT.read_text(), "sh", verb, *more],
            env=environment, capture_output=True, text=True, timeout=20, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout.strip() or done.stderr.strip()

    def is_idle_for(self, seconds: float, key: str = "key") -> None:
        os.utime(self.folder / key / ".owner", (time.time() - seconds,) * 2)


@pytest.fixture
def builds(tmp_path: Path) -> Builds:
    (tmp_path / "current").touch()
    return Builds(tmp_path / "build")


def test_one_run_has_the_folder_until_it_is_done(builds: Builds) -> None:
    assert builds.call("alice", "claim") == (0, "")
    assert builds.call("alice", "claim") == (0, "")
    assert builds.call("bob", "claim") == (WAIT, "alice")
    assert builds.call("bob", "claim", "1") == (WAIT, "alice")
    assert builds.call("bob", "remove") == builds.call("bob", "leave") == builds.call("alice", "renew") == (0, "")
    assert builds.call("bob", "renew")[0] == 1
    assert builds.call("alice", "remove") == (0, "")
    assert not builds.folder.exists(), "nothing of it is left"
    assert builds.call("bob", "claim") == (0, "")


def test_a_kept_folder_stays_until_another_key_is_built(builds: Builds) -> None:
    builds.call("alice", "claim", key="old")
    builds.call("alice", "leave", key="old")
    assert builds.call("bob", "claim") == builds.call("bob", "sweep") == builds.call("bob", "leave") == (0, "")
    assert [path.name for path in builds.folder.iterdir() if path.is_dir()] == ["key"]
    assert builds.call("alice", "claim") == (0, "")


def test_a_run_that_has_waited_for_another_says_so(builds: Builds) -> None:
    builds.call("alice", "claim")
    timer = threading.Timer(1, builds.call, ("alice", "leave"))
    timer.start()
    assert builds.call("bob", "claim", "15") == (0, "waited")
    timer.join()


def test_what_was_begun_is_left_to_the_next_run(builds: Builds) -> None:
    builds.call("alice", "claim")
    (builds.folder / "key" / "tree").mkdir()
    assert builds.call("alice", "leave") == (0, "")
    assert builds.call("bob", "claim") == (0, "")
    assert (builds.folder / "key" / "tree").exists()
    code, said = builds.call("alice", "renew")
    assert code == 1
    assert said.startswith("another run has taken over")


@pytest.mark.parametrize(
    ("seconds", "working", "code"),
    [(50, False, WAIT), (70, False, 0), (70, True, WAIT), (-300, False, 0)],
    ids=["shown lately", "long ago", "its command still runs", "before the clock was set"],
)
def test_a_folder_is_taken_over_when_its_run_is_dead(builds: Builds, seconds: int, working: bool, code: int) -> None:
    builds.call("alice", "claim")
    builds.is_idle_for(seconds)
    lock = builds.folder / "key" / ".watched_command.lock"
    command = subprocess.Popen(["flock", lock, "sleep", "60"], start_new_session=True) if working else None
    try:
        while command and subprocess.run(["flock", "--nonblock", lock, "true"], check=False).returncode == 0:
            time.sleep(0.01)
        assert builds.call("bob", "claim")[0] == code
    finally:
        if command:
            os.killpg(command.pid, 15)
            command.wait(10)


def test_what_dead_runs_have_left_goes_and_what_others_build_stays(builds: Builds) -> None:
    for key in ("dead", "left", "other"):
        builds.call("alice", "claim", key=key)
    builds.is_idle_for(90_000, key="dead")
    builds.is_idle_for(7000, key="other")  # its run waits for its turn
    builds.call("alice", "leave", key="left")
    builds.call("bob", "claim")
    assert builds.call("bob", "sweep") == (0, "")
    assert {path.name for path in builds.folder.iterdir()} == {".lock", "key", "other"}
    builds.call("bob", "remove")
    assert {path.name for path in builds.folder.iterdir()} == {".lock", "other"}


def test_of_many_that_want_it_at_once_one_gets_it(builds: Builds) -> None:
    environment = {"PATH": os.environ["PATH"], "BUILDS": str(builds.folder), "KEY": "key", "LAPSES": "60"}
    runs = [
        subprocess.Popen(["sh", SCRIPT, "claim"], env={**environment, "OWNER": f"run {n}"}, stdout=subprocess.PIPE)
        for n in range(8)
    ]
    for run in runs:
        run.communicate(timeout=20)
    assert sorted(run.returncode for run in runs) == [0, *[WAIT] * 7]


def test_a_name_may_have_a_backslash(builds: Builds) -> None:
    assert builds.call(r"CORP\nick", "claim") == (0, "")
    assert builds.call(r"CORP\nick", "renew") == (0, "")
    assert builds.call("bob", "claim") == (WAIT, r"CORP\nick")


def test_what_cannot_be_written_is_said_at_once(builds: Builds) -> None:
    (builds.folder / "key" / ".owner.new").mkdir(parents=True)
    # The lock cannot be made, as on a full disk.
    (builds.folder / "key" / ".watched_command.lock").symlink_to("missing/lock")
    code, said = builds.call("alice", "claim")
    assert code not in (0, WAIT)
    assert said.startswith(f"the disk that holds {builds.folder}/key is full or cannot be written to: make room")


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "build").write_text("a file")
    code, said = Builds(tmp_path / "build").call("alice", "claim")
    assert code not in (0, WAIT)
    assert "mkdir" in said
