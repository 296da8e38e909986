# SPDX-License-Identifier: GPL-3.0-or-later
"""Conversations that are continued after a llama-server has ended, and who may read or change them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.api_service import NO_PAGE, Service, healing_service, speculation
from support.harness import Release, Worker
from support.runs import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.llama

KEPT: dict[str, Any] = {"cache_disk_mib": 64, "save_after_s": 1}
# So many tokens of the first turn have to be there for the second one.
ENOUGH = 100
FIRST = " ".join(f"word{number}" for number in range(60))


@pytest.fixture
def own_workers(start: Callable[..., Worker]) -> list[Worker]:
    return [start() for _number in range(2)]


def turn(service: Service, prompt: str) -> tuple[str, int]:
    """Return the answer to a prompt, and how many of its tokens were there from an earlier one."""
    asked = {"prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    status, body = service.request("/v1/completions", asked)
    assert status == 200, body
    return str(body["choices"][0]["text"]), int(body["timings"]["cache_n"])


def drain(service: Service) -> None:
    """Run what the unit runs before it stops the service."""
    pid = service.process.pid
    (child,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    drain = service.drain(20, pid=int(child))
    assert drain.communicate(timeout=60)[0] == ""


def saved(folder: Path) -> list[Path]:
    return sorted((folder / "prompts").glob("*.slot"))


def test_a_conversation_continues_after_a_lost_worker(
    release: Release, model: Path, tmp_path: Path, own_workers: list[Worker]
) -> None:
    with healing_service(release, model, own_workers, tmp_path, **KEPT) as service:
        service.wait_for("Serving noise over 2 workers at")
        answer, known = turn(service, FIRST)
        assert known == 0
        (path,) = wait_for(lambda: saved(tmp_path), 20)
        assert [it.stat().st_mode & 0o077 for it in (path, tmp_path / "prompts/key")] == [0, 0]
        own_workers[0].kill()
        service.wait_for("Serving noise over 1 of 2 workers")
        assert "Conversations that were saved, and continue: 1.\n" in service.lines
        assert turn(service, f"{FIRST}{answer} and then")[1] > ENOUGH


KINDS: dict[str, list[str]] = {
    "layers": [],
    "tensor": ["--split-mode", "tensor", "--flash-attn", "on"],
    "small cache": ["--cache-type-k", "q8_0"],
    "draft": [],
}


# The trained model has layers with sliding windows.
@pytest.mark.parametrize(
    ("which", "kind"), [*(("model", kind) for kind in KINDS), ("trained_model", "layers"), ("trained_model", "draft")]
)
def test_the_answer_is_the_one_of_a_conversation_that_never_stopped(
    release: Release, tmp_path: Path, workers: list[Worker], request: pytest.FixtureRequest, which: str, kind: str
) -> None:
    model: Path = request.getfixturevalue(which)
    drafting = speculation(llama_server_draft_model=str(model)) if kind == "draft" else []
    options = [*NO_PAGE, *KINDS[kind], *drafting]
    given = {**KEPT, "save_after_s": 1000, "options": options}
    ready = "Serving noise over 2 workers at"
    with healing_service(release, model, workers[:2], tmp_path, **given) as service:
        service.wait_for(ready, 120)
        second = f"{FIRST}{turn(service, FIRST)[0]} and then"
        drain(service)
    with healing_service(release, model, workers[:2], tmp_path, **given) as service:
        service.wait_for(ready, 120)
        assert "Conversations that were saved, and continue: 1.\n" in service.lines
        after, known = turn(service, second)
        assert known > ENOUGH
    (tmp_path / "other").mkdir()
    with healing_service(release, model, workers[:2], tmp_path / "other", options=options) as service:
        service.wait_for(ready, 120)
        turn(service, FIRST)
        assert turn(service, second)[0] == after


def test_only_the_service_saves_and_restores(
    release: Release, model: Path, tmp_path: Path, workers: list[Worker]
) -> None:
    with healing_service(release, model, workers[:1], tmp_path, **KEPT) as service:
        service.wait_for("Serving noise over 1 worker")
        turn(service, FIRST)
        wait_for(lambda: saved(tmp_path), 20)
        for action in ("save", "restore", "erase"):
            status, body = service.request(f"/slots/0?action={action}", {"filename": saved(tmp_path)[0].name})
            assert (status, body["error"]["message"]) == (403, "This server saves its slots by itself")
        assert turn(service, f"{FIRST} and then")[1] > ENOUGH


def test_what_cannot_be_continued_is_removed(
    release: Release, model: Path, tmp_path: Path, workers: list[Worker]
) -> None:
    def after(change: Callable[[Path], object], options: tuple[str, ...] = NO_PAGE) -> int:
        """Return how many tokens are known after a change to the file of a conversation."""
        with healing_service(release, model, workers[:1], tmp_path, **KEPT) as service:
            service.wait_for("Serving noise over 1 worker")
            turn(service, FIRST)
            (path,) = wait_for(lambda: saved(tmp_path), 20)
        change(path)
        with healing_service(release, model, workers[:1], tmp_path, options=options, **KEPT) as service:
            service.wait_for("Serving noise over 1 worker")
            assert not any("Conversations" in line for line in service.lines)
            assert saved(tmp_path) == []
            known = turn(service, FIRST)[1]
            wait_for(lambda: saved(tmp_path), 20)
        saved(tmp_path)[0].unlink()
        return known

    assert after(lambda path: path.write_bytes(path.read_bytes()[:5000])) == 0
    assert after(lambda path: path.write_bytes(bytes(path.stat().st_size))) == 0
    assert after(lambda path: os.utime(path, (0, time.time() - 25 * 3600))) == 0
    assert after(lambda _path: None, (*NO_PAGE, "--cache-type-k", "q8_0")) == 0


def test_a_file_over_which_llama_server_ends_is_not_given_to_the_next_one(
    release: Release, model: Path, tmp_path: Path, workers: list[Worker]
) -> None:
    with healing_service(release, model, workers[:1], tmp_path, **KEPT) as service:
        service.wait_for("Serving noise over 1 worker")
        turn(service, FIRST)
        (path,) = wait_for(lambda: saved(tmp_path), 20)
    path.write_bytes(path.read_bytes()[:5000])
    path.rename(path.with_name("-".join([*path.stem.split("-")[:2], "5000.slot"])))
    with healing_service(release, model, workers[:1], tmp_path, **KEPT) as service:
        service.wait_for("llama-server was ended by SIGABRT")
        wait_for(lambda: sum("Serving noise" in line for line in service.lines) == 2, 60)
        assert turn(service, FIRST)[1] == 0


def test_a_conversation_that_is_too_large_is_not_saved_and_the_api_serves_on(
    release: Release, model: Path, tmp_path: Path, workers: list[Worker]
) -> None:
    with healing_service(release, model, workers[:1], tmp_path, **{**KEPT, "cache_disk_mib": 2}) as service:
        service.wait_for("Serving noise over 1 worker")
        turn(service, FIRST)
        service.wait_for(" is not saved: Unable to save slot.")
        assert list((tmp_path / "prompts").glob("*.[ps]*")) == []
        assert turn(service, f"{FIRST} and then")[1] > ENOUGH


def test_an_api_whose_conversations_cannot_be_kept_serves(
    release: Release, model: Path, tmp_path: Path, workers: list[Worker]
) -> None:
    # Where the key would be written
    (tmp_path / "prompts/key.partial").mkdir(parents=True)
    with healing_service(release, model, workers[:1], tmp_path, **KEPT) as service:
        service.wait_for("Conversations are not saved: ")
        service.wait_for("Serving noise over 1 worker")
        turn(service, FIRST)
        assert saved(tmp_path) == []
