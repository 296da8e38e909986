# SPDX-License-Identifier: GPL-3.0-or-later
"""Downloads over real HTTP on loopback, from a stand-in for the hub and its storage (hub_stand_in.py)."""

from __future__ import annotations

import json
import os
import random
import resource
import socket
import struct
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._files import record as records
from ansible_collections.llama_cpp.cluster.plugins.module_utils._files import web
from ansible_collections.llama_cpp.cluster.plugins.module_utils._files.download import (
    Wanted,
    Whole,
    fetch,
    make,
    plan,
)
from ansible_collections.llama_cpp.cluster.plugins.module_utils._files.record import FileError, known
from ansible_collections.llama_cpp.cluster.plugins.module_utils._files.web import DownloadError, Limits
from ansible_collections.llama_cpp.cluster.plugins.modules.model_file import check_headers, check_model

from support.hub_stand_in import SIGNATURE, Hub, git_blob, running_hub, sha256

if TYPE_CHECKING:
    from collections.abc import Iterator

CONTENT = random.Random(1).randbytes(3 << 20)
OTHER = random.Random(2).randbytes(3 << 20)
NAME = "data.bin"
TOKEN = "hf_neverseenanywhere"


def limits(retries: int = 0, stall: float = 5, total: float = 20) -> Limits:
    return Limits(stall, retries, time.monotonic() + total)


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub({NAME: CONTENT}) as hub:
        yield hub


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "LONGEST_PAUSE_S", 0.01)


def wanted(hub: Hub, folder: Path, digest: str = "", **more: Any) -> Wanted:
    return Wanted(more.pop("url", hub.url(NAME)), folder / NAME, digest or sha256(CONTENT), **more)


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def ranges(hub: Hub) -> list[str | None]:
    return [seen.headers.get("Range") for seen in hub.downloads()]


def test_a_file_is_fetched_verified_and_recorded_and_the_second_time_neither_fetched_nor_read(
    hub: Hub, tmp_path: Path
) -> None:
    file = wanted(hub, tmp_path)
    assert fetch(file, {"source": "test"}, limits()) is True
    assert file.path.read_bytes() == CONTENT
    assert left(tmp_path) == [f".{NAME}.llama_cpp.json", NAME]
    record = known(file.path)
    assert record is not None
    assert (record.sha256, record.origin, record.adopted) == (sha256(CONTENT), {"source": "test"}, False)
    before = len(hub.seen)
    # Other bytes with the same size, time and inode: reading the file would reveal them.
    times = file.path.stat()
    file.path.write_bytes(OTHER)
    os.utime(file.path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert fetch(file, {"source": "test"}, limits()) is False
    assert len(hub.seen) == before


def test_what_was_changed_is_noticed_and_fetched_again(hub: Hub, tmp_path: Path) -> None:
    file = wanted(hub, tmp_path)
    fetch(file, {}, limits())
    file.path.write_bytes(OTHER)
    assert fetch(file, {}, limits()) is True
    assert file.path.read_bytes() == CONTENT


def test_a_touched_file_is_read_once_and_not_fetched(hub: Hub, tmp_path: Path) -> None:
    file = wanted(hub, tmp_path)
    fetch(file, {}, limits())
    os.utime(file.path)
    assert fetch(file, {}, limits()) is True
    assert fetch(file, {}, limits()) is False
    assert len(hub.downloads()) == 1


def test_a_file_of_somebody_else_is_taken_over_or_refused_but_never_overwritten(hub: Hub, tmp_path: Path) -> None:
    file = wanted(hub, tmp_path)
    file.path.write_bytes(CONTENT)
    assert fetch(file, {}, limits()) is True
    record = known(file.path)
    assert record is not None
    assert record.adopted
    records.record_path(file.path).unlink()
    file.path.write_bytes(OTHER)
    with pytest.raises(FileError, match=f"{sha256(OTHER)}, and {sha256(CONTENT)} is wanted: move it away"):
        fetch(file, {}, limits())
    assert file.path.read_bytes() == OTHER
    assert hub.seen == []


def test_a_download_that_breaks_off_goes_on_where_it_was(hub: Hub, tmp_path: Path) -> None:
    hub.cut_after = [1 << 20]
    fetch(wanted(hub, tmp_path), {}, limits(retries=1))
    assert ranges(hub) == [None, "bytes=1048576-"]
    assert hub.downloads()[1].headers["If-Range"].startswith('"')


def test_a_later_run_goes_on_where_the_last_one_was(hub: Hub, tmp_path: Path) -> None:
    file = wanted(hub, tmp_path)
    hub.cut_after = [1 << 20]
    with pytest.raises(DownloadError, match="the connection ended after 1048576 of 3145728 bytes"):
        fetch(file, {}, limits())
    assert left(tmp_path) == [f".{NAME}.part.json", f"{NAME}.part"]
    assert fetch(file, {}, limits()) is True
    assert ranges(hub) == [None, "bytes=1048576-"]
    assert left(tmp_path) == [f".{NAME}.llama_cpp.json", NAME]


def test_progress_gives_new_patience(hub: Hub, tmp_path: Path) -> None:
    hub.cut_after = [1 << 20] * 2
    fetch(wanted(hub, tmp_path), {}, limits(retries=1))
    assert len(ranges(hub)) == 3


def break_off(hub: Hub, file: Wanted) -> None:
    hub.cut_after = [1 << 20]
    with pytest.raises(DownloadError):
        fetch(file, {}, limits())
    hub.seen.clear()


def test_a_server_without_ranges_is_read_from_the_beginning(hub: Hub, tmp_path: Path) -> None:
    hub.ranges = False
    break_off(hub, wanted(hub, tmp_path))
    fetch(wanted(hub, tmp_path), {}, limits())
    assert (tmp_path / NAME).read_bytes() == CONTENT


def test_a_file_that_has_changed_on_the_server_is_begun_anew(hub: Hub, tmp_path: Path) -> None:
    hub.files[NAME] = OTHER
    break_off(hub, wanted(hub, tmp_path))
    hub.files[NAME] = CONTENT
    fetch(wanted(hub, tmp_path), {}, limits())
    assert len(hub.downloads()) == 1, "If-Range brought the new version at once"


def test_first_bytes_of_another_version_are_noticed_at_the_end(hub: Hub, tmp_path: Path) -> None:
    file = wanted(hub, tmp_path)
    break_off(hub, file)
    file.part.write_bytes(OTHER[: 1 << 20])
    fetch(file, {}, limits())
    assert ranges(hub) == ["bytes=1048576-", None]
    assert file.path.read_bytes() == CONTENT


@pytest.mark.parametrize("size", [len(CONTENT), len(CONTENT) + 7], ids=["whole", "too-long"])
def test_a_part_that_is_whole_or_longer(hub: Hub, tmp_path: Path, size: int) -> None:
    file = wanted(hub, tmp_path)
    break_off(hub, file)
    file.part.write_bytes((CONTENT + OTHER)[:size])
    file.note.write_text(json.dumps({**json.loads(file.note.read_text()), "total": None}))
    fetch(file, {}, limits(retries=1))
    assert file.path.read_bytes() == CONTENT


def test_a_part_of_another_file_is_not_gone_on_with(hub: Hub, tmp_path: Path) -> None:
    break_off(hub, wanted(hub, tmp_path, sha256(OTHER)))
    fetch(wanted(hub, tmp_path), {}, limits())
    assert ranges(hub) == [None]


def test_a_wrong_digest_names_both_and_leaves_nothing(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(FileError, match=f"SHA-256 digest {sha256(CONTENT)}, but {'0' * 64} was expected") as caught:
        fetch(wanted(hub, tmp_path / "new", "0" * 64), {}, limits())
    assert SIGNATURE not in str(caught.value)
    assert left(tmp_path) == []


@pytest.mark.parametrize("name", [f"{NAME}.part", f".{NAME}.part.json", f".{NAME}.llama_cpp.json.new"])
def test_a_link_that_somebody_has_laid_is_not_followed(hub: Hub, tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / name).symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        fetch(wanted(hub, folder), {}, limits())
    assert victim.read_text() == "mine"


def test_a_web_page_is_no_model_whatever_its_digest(tmp_path: Path) -> None:
    page = b"<!DOCTYPE html><title>Sign in</title>"
    with running_hub({"model.gguf": page}) as hub:
        file = Wanted(hub.direct("model.gguf"), tmp_path / "model.gguf", sha256(page))
        with pytest.raises(FileError, match="it is a web page"):
            fetch(file, {}, limits(), check=check_model)
    assert left(tmp_path) == []


def test_the_token_goes_to_the_hub_alone(hub: Hub, tmp_path: Path) -> None:
    hub.token = TOKEN
    fetch(wanted(hub, tmp_path), {}, limits(), TOKEN)
    assert [(seen.server, "Authorization" in seen.headers) for seen in hub.seen] == [("front", True), ("store", False)]


def test_the_token_stays_with_a_redirect_on_the_same_host(hub: Hub, tmp_path: Path) -> None:
    hub.token = TOKEN
    url = hub.url(NAME).replace(hub.repo, "renamed/model-GGUF")
    fetch(wanted(hub, tmp_path, url=url), {}, limits(), TOKEN)
    assert [("Authorization" in seen.headers) for seen in hub.seen] == [True, True, False]


@pytest.mark.parametrize(
    ("behaviour", "token", "words"),
    [
        pytest.param({"token": TOKEN}, None, r"\(401\): it needs a token with access", id="no-token"),
        pytest.param({"token": TOKEN}, "wrong", r"\(401\): the token lacks access", id="wrong-token"),
        pytest.param({"gated": True}, "any", r"\(403\): the token lacks access", id="gated"),
        pytest.param({"statuses": [404]}, None, r"does not exist \(404\): correct the URL", id="missing"),
        pytest.param({"statuses": [503] * 9}, None, "the server answers 503 .*3 times in a row", id="out-of-service"),
        pytest.param({"statuses": [400]}, None, "the server answers 400", id="bad-request"),
        pytest.param({"cut_after": [0] * 9}, None, "ended after 0 of 3145728 bytes, 3 times", id="nothing-comes"),
        pytest.param({"cut_after": [0] * 9, "chunked": True}, None, "the connection ended before the file", id="chunk"),
    ],
)
def test_what_a_server_refuses_is_a_sentence_and_leaves_nothing(
    hub: Hub, tmp_path: Path, behaviour: dict[str, Any], token: str | None, words: str
) -> None:
    for name, value in behaviour.items():
        setattr(hub, name, value)
    with pytest.raises(DownloadError, match=words) as caught:
        fetch(wanted(hub, tmp_path / "a/b"), {}, limits(retries=2), token)
    assert TOKEN not in str(caught.value)
    assert SIGNATURE not in str(caught.value)
    assert left(tmp_path) == []


def test_what_passes_is_waited_for(hub: Hub, tmp_path: Path) -> None:
    hub.statuses = [503, 429, 200]
    assert fetch(wanted(hub, tmp_path), {}, limits(retries=2)) is True


def test_a_body_of_unknown_length(hub: Hub, tmp_path: Path) -> None:
    hub.chunked = True
    assert fetch(wanted(hub, tmp_path), {}, limits()) is True


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
def test_more_than_the_expected_bytes_are_not_written(hub: Hub, tmp_path: Path, *, chunked: bool) -> None:
    hub.chunked = chunked
    words = r"sends more than the file's 1000 bytes" if chunked else r"has 3145728 bytes on the server, and 1000 were"
    with pytest.raises(FileError, match=words):
        fetch(wanted(hub, tmp_path / "new", size_bytes=1000), {}, limits())
    assert left(tmp_path) == []


def test_fewer_than_the_expected_bytes_are_another_file(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(FileError, match=f"has {len(CONTENT)} bytes on the server, and {len(CONTENT) + 1} were"):
        fetch(wanted(hub, tmp_path / "new", size_bytes=len(CONTENT) + 1), {}, limits())
    assert left(tmp_path) == []


@contextmanager
def full_after(size: int) -> Iterator[None]:
    """Let the kernel refuse to make a file longer than this, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_keeps_a_part_only_if_its_end_is_known(hub: Hub, tmp_path: Path) -> None:
    with full_after(2 << 20), pytest.raises(OSError, match="too large"):
        fetch(wanted(hub, tmp_path), {}, limits())
    assert (tmp_path / f"{NAME}.part").stat().st_size > 0
    hub.chunked = True
    other = wanted(hub, tmp_path / "new")
    with full_after(2 << 20), pytest.raises(FileError, match="its server does not say how large it is"):
        fetch(other, {}, limits())
    assert not other.path.parent.exists()


def test_a_server_that_falls_silent_is_given_up(hub: Hub, tmp_path: Path) -> None:
    hub.cut_after, hub.stall_s = [1000], 3
    started = time.monotonic()
    with pytest.raises(DownloadError, match=r"localhost has sent nothing for 0\.3 s"):
        fetch(wanted(hub, tmp_path), {}, limits(stall=0.3))
    assert time.monotonic() - started < 2


def test_the_whole_has_a_limit(hub: Hub, tmp_path: Path) -> None:
    hub.cut_after, hub.stall_s = [1000] * 99, 3
    with pytest.raises(DownloadError, match="within the time limit of the download; what has arrived is kept"):
        fetch(wanted(hub, tmp_path), {}, limits(retries=99, stall=0.2, total=0.5))
    assert (tmp_path / f"{NAME}.part").stat().st_size >= 1000


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://127.0.0.1:{port}/x", "127.0.0.1 refuses connections"),
        ("http://no-such-host.invalid/x", "the name no-such-host.invalid cannot be resolved"),
        ("ftp://127.0.0.1/x", "is not a URL that can be fetched: give one with http:// or https://"),
        ("http://me:secret@127.0.0.1/x", "the URL of 127.0.0.1 holds a user name or password"),
        ("http://[::1/x?secret", "is not a URL that can be fetched"),
    ],
    ids=["refused", "unknown-name", "ftp", "password", "nonsense"],
)
def test_an_address_that_cannot_work(tmp_path: Path, url: str, words: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        file = Wanted(url.format(port=unused.getsockname()[1]), tmp_path / NAME, "0" * 64)
        with pytest.raises(DownloadError, match=words) as caught:
            fetch(file, {}, limits())
    assert "secret" not in str(caught.value)
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    ("url", "secrets"),
    [
        ("https://me:a%2Fb@host/x?signature=1#part", {"me:a%2Fb", "a%2Fb", "a/b", "signature=1"}),
        ("http://[::1/x?signature=1", {"signature=1"}),
        # Other texts may hold the same letters as these.
        ("https://host/@x?v=1", set()),
        ("ssh://git@host/x.git", set()),
        ("/srv/x", set()),
    ],
    ids=["login", "nonsense", "short", "ssh", "path"],
)
def test_the_secrets_of_an_address(url: str, secrets: set[str]) -> None:
    assert web.secrets_of(url) == secrets


@pytest.mark.parametrize("answer", [b"HTTP/1.1 404 \x1b]0;x\x07", b"\x1b]0;x\x07"])
def test_what_a_server_says_does_not_control_the_terminal(tmp_path: Path, answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def speak() -> None:
            with server.accept()[0] as sock:
                sock.recv(65536)
                sock.sendall(answer + b"\r\n\r\n")

        thread = threading.Thread(target=speak)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/x"
        with pytest.raises(DownloadError) as caught:
            fetch(Wanted(url, tmp_path / NAME, sha256(CONTENT)), {}, limits())
        thread.join()
    assert str(caught.value).isprintable()


def test_redirects_end(tmp_path: Path) -> None:
    with running_hub({}) as hub:
        hub.repo = "renamed/model-GGUF"  # leads to itself
        with pytest.raises(DownloadError, match="redirects too often, or to no URL"):
            fetch(wanted(hub, tmp_path), {}, limits())


def test_two_runs_fetch_once(hub: Hub, tmp_path: Path) -> None:
    results: list[bool] = []
    threads = [
        threading.Thread(target=lambda: results.append(fetch(wanted(hub, tmp_path), {}, limits()))) for _run in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(results) == [False, False, True]
    assert len(hub.downloads()) == 1
    assert left(tmp_path) == [f".{NAME}.llama_cpp.json", NAME]


@contextmanager
def little_room(monkeypatch: pytest.MonkeyPatch, free: int) -> Iterator[None]:
    class Found:
        f_bavail, f_frsize = free, 1

    monkeypatch.setattr(records.os, "statvfs", lambda _path: Found)
    yield
    monkeypatch.undo()


def test_room_is_checked_for_all_files_before_the_first(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [Wanted(hub.url(NAME), tmp_path / name, sha256(CONTENT)) for name in ("a", "b")]
    with little_room(monkeypatch, 5 << 20), pytest.raises(FileError, match=r"needs 0\.01 GiB on .*GiB are missing"):
        plan(files, {}, limits(), None)
    assert hub.downloads() == []
    assert [file.path.name for file in plan(files, {}, limits(), None)] == ["a", "b"]


# Pieces of one file


PIECES = {f"m.gguf.part{number}of2": part for number, part in ((1, CONTENT), (2, OTHER[:-7]))}
JOINED = b"".join(PIECES.values())


def joined(hub: Hub, folder: Path, sha256: str | None = None, **more: Any) -> bool:
    """Bring the pieces and join them, as the module does."""
    files = pieces(hub, folder)

    def bring() -> None:
        for file in reversed(files):
            fetch(file, {"source": "test"}, limits())

    whole = Whole(folder / "m.gguf", sha256)
    return make(whole, files, {"source": "test"}, limits(), more.pop("bring", bring), more.pop("check", print), **more)


def pieces(hub: Hub, folder: Path) -> list[Wanted]:
    hub.files.update(PIECES)
    return [Wanted(hub.direct(name), folder / ".m" / name, sha256(part)) for name, part in PIECES.items()]


def test_pieces_are_joined_and_neither_fetched_nor_joined_again(hub: Hub, tmp_path: Path) -> None:
    told: list[tuple[str, int, int | None]] = []
    assert joined(hub, tmp_path, tell=lambda *seen: told.append(seen)) is True
    assert (tmp_path / "m.gguf").read_bytes() == JOINED
    assert told[-1] == ("joining", len(JOINED), len(JOINED))
    assert left(tmp_path) == [".m", ".m.gguf.llama_cpp.json", "m.gguf"]
    record = known(tmp_path / "m.gguf")
    assert record is not None
    assert (record.sha256, record.origin, record.adopted) == (sha256(JOINED), {"source": "test"}, False)
    assert (tmp_path / "m.gguf").stat().st_mode & 0o777 == 0o644
    before = len(hub.seen)
    assert joined(hub, tmp_path) is False
    assert joined(hub, tmp_path, sha256(JOINED)) is False
    assert len(hub.seen) == before


def test_a_run_that_was_killed_while_it_joined_is_repaired_without_the_network(hub: Hub, tmp_path: Path) -> None:
    joined(hub, tmp_path)
    (tmp_path / "m.gguf").unlink()
    (tmp_path / "m.gguf.part").write_bytes(b"longer than the whole" + JOINED)
    before = len(hub.seen)
    assert joined(hub, tmp_path) is True
    assert (tmp_path / "m.gguf").read_bytes() == JOINED
    assert left(tmp_path) == [".m", ".m.gguf.llama_cpp.json", "m.gguf"]
    assert len(hub.seen) == before


def test_a_whole_with_a_wrong_digest_is_not_kept_and_its_pieces_are(hub: Hub, tmp_path: Path) -> None:
    words = f"m.gguf, joined from 2 pieces, has the SHA-256 digest {sha256(JOINED)}, but {'0' * 64} was expected; the"
    with pytest.raises(FileError, match=words):
        joined(hub, tmp_path, "0" * 64)
    assert left(tmp_path) == [".m"]
    assert len(left(tmp_path / ".m")) == 4


def test_a_whole_of_somebody_else_is_not_overwritten(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(JOINED)
    with pytest.raises(FileError, match="already exists and was not put there by this collection"):
        joined(hub, tmp_path)
    assert joined(hub, tmp_path, sha256(JOINED)) is True, "it has the wanted digest"
    assert hub.seen == []


def test_room_is_checked_for_the_pieces_and_the_whole(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, whole = pieces(hub, tmp_path), Whole(tmp_path / "m.gguf", None)

    def room(free: int) -> None:
        with little_room(monkeypatch, free):
            plan(files, {}, limits(), None, whole=whole)

    for missing in (2 * len(JOINED), 2 * len(JOINED) - len(OTHER) + 7):
        with pytest.raises(FileError, match=r"m.gguf, joined from pieces, needs 0\.0. GiB on .*GiB are missing"):
            room(missing - 1)
        room(missing)
        fetch(files[1], {}, limits())


# The header before the weights


def headed(hub: Hub, folder: Path, content: bytes, cut: int = 0) -> None:
    """Look at the header of a model on the hub, whole or as the first of two pieces."""
    names = {"m.gguf.part1of2": content[:cut], "m.gguf.part2of2": content[cut:]} if cut else {"m.gguf": content}
    hub.files = dict(names)
    files = [Wanted(hub.url(name), folder / name, sha256(part), len(part)) for name, part in names.items()]
    whole = Whole(folder / "m.gguf", None) if cut else None
    check_headers(files, {file: file.size_bytes for file in files}, whole, limits(retries=5), None)


def model_of_type(kind: int) -> bytes:
    """Return a GGUF file of one tensor of 2 MiB, if its type is F32."""
    text = struct.pack("<Q", 1) + b"t"
    return b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text + struct.pack("<IQIQ", 1, 2 << 18, kind, 0) + bytes(4 << 20)


@pytest.mark.parametrize("ranges", [True, False], ids=["ranges", "no-ranges"])
@pytest.mark.parametrize("cut", [0, 1 << 20], ids=["whole", "pieces"])
def test_a_model_that_llama_cpp_refuses_is_not_fetched(hub: Hub, tmp_path: Path, ranges: bool, cut: int) -> None:
    hub.ranges = ranges
    headed(hub, tmp_path, model_of_type(0), cut)
    words = r"m.gguf\S* is not a complete GGUF model: its tensor 't' is of type 138 of ik_llama.cpp, a fork, and"
    with pytest.raises(FileError, match=words) as caught:
        headed(hub, tmp_path, model_of_type(138), cut)
    assert str(caught.value).endswith("take the model in another quantisation; nothing was fetched.")
    assert SIGNATURE not in str(caught.value)
    assert left(tmp_path) == []


def test_a_last_piece_that_is_missing_is_noticed_by_the_header(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(FileError, match="the copy is incomplete; nothing was fetched"):
        headed(hub, tmp_path, model_of_type(0)[: 2 << 20], 1 << 20)


@pytest.mark.parametrize("cut", [20, 60], ids=["in-the-magic-and-counts", "in-the-tensors"])
def test_a_header_that_goes_on_in_the_next_piece_is_left_to_the_join(hub: Hub, tmp_path: Path, cut: int) -> None:
    headed(hub, tmp_path, model_of_type(138), cut)


@pytest.mark.parametrize(
    "trouble", [{"statuses": [500]}, {"statuses": [404]}, {"cut_after": [10]}], ids=["500", "404", "cut"]
)
def test_a_header_that_cannot_be_read_is_left_to_the_download(
    hub: Hub, tmp_path: Path, trouble: dict[str, Any]
) -> None:
    for name, value in trouble.items():
        setattr(hub, name, value)
    headed(hub, tmp_path, model_of_type(138))
    assert len(hub.downloads()) == 1, "the download itself is patient"


def test_what_has_begun_to_arrive_is_not_asked_for_again(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "m.gguf.part").touch()
    headed(hub, tmp_path, model_of_type(138))
    assert hub.seen == []


def test_a_small_file_of_git_is_verified_too(tmp_path: Path) -> None:
    with running_hub({"config.json": b"{}"}, small={"config.json"}) as hub:
        file = Wanted(hub.url("config.json"), tmp_path / "config.json", git_blob(b"{}"))
        assert fetch(file, {}, limits()) is True
        assert fetch(file, {}, limits()) is False
        wrong = Wanted(hub.url("config.json"), tmp_path / "other.json", git_blob(b"[]"))
        with pytest.raises(FileError, match="git object name"):
            fetch(wrong, {}, limits())
