# SPDX-License-Identifier: GPL-3.0-or-later
"""Downloads over real HTTP on loopback, from a stand-in for the hub and its storage (hub_stand_in.py)."""

from __future__ import annotations

import json
import os
import random
import resource
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
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
)
from ansible_collections.llama_cpp.cluster.plugins.module_utils._files.record import FileError, known
from ansible_collections.llama_cpp.cluster.plugins.module_utils._files.web import DownloadError, Limits
from ansible_collections.llama_cpp.cluster.plugins.modules.model_file import check_headers

from support.gguf_headers import file_of, tensor
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
    # With another time it is read, and fetched again as it has changed.
    os.utime(file.path)
    assert fetch(file, {}, limits()) is True
    assert file.path.read_bytes() == CONTENT
    os.utime(file.path)
    before = len(hub.seen)
    assert [fetch(file, {}, limits()) for _time in range(2)] == [True, False]
    assert len(hub.seen) == before


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


CUT = {"cut_after": [1 << 20]}
FROM = "bytes=1048576-"


@pytest.mark.parametrize(
    ("behaviour", "asked"),
    [
        ({}, [None]),
        ({"chunked": True}, [None]),
        ({"statuses": [503, 429, 200]}, [None]),
        (CUT, [None, FROM]),
        # Progress gives new patience.
        ({"cut_after": [1 << 20] * 3}, [None, FROM, "bytes=2097152-"]),
        ({**CUT, "ranges": False}, [None, FROM]),
    ],
    ids=["whole", "of-unknown-length", "what-passes", "breaks-off", "again-and-again", "no-ranges"],
)
def test_a_download_goes_on_where_it_was(
    hub: Hub, tmp_path: Path, behaviour: dict[str, Any], asked: list[str | None]
) -> None:
    for name, value in behaviour.items():
        setattr(hub, name, list(value) if isinstance(value, list) else value)
    assert fetch(wanted(hub, tmp_path), {}, limits(retries=2)) is True
    assert (tmp_path / NAME).read_bytes() == CONTENT
    assert list(dict.fromkeys(ranges(hub))) == asked
    assert all(seen.headers["If-Range"].startswith('"') for seen in hub.downloads() if seen.headers.get("Range"))


# What is there of a file when the next run begins, the file that the server had before, and what is asked for.
PARTS: dict[str, tuple[bytes | None, bytes, list[str | None]]] = {
    "as it was left": (None, CONTENT, [FROM]),
    # If-Range brings the new version at once.
    "changed on the server": (None, OTHER, [FROM]),
    # This is noticed at the end.
    "another version": (OTHER[: 1 << 20], CONTENT, [FROM, None]),
    "whole": (CONTENT, CONTENT, ["bytes=3145728-", None]),
    "too long": (CONTENT + OTHER[:7], CONTENT, ["bytes=3145735-", None]),
}


@pytest.mark.parametrize(("part", "before", "asked"), PARTS.values(), ids=PARTS)
def test_a_later_run_goes_on_with_a_part_of_the_same_file_alone(
    hub: Hub, tmp_path: Path, part: bytes | None, before: bytes, asked: list[str | None]
) -> None:
    file = wanted(hub, tmp_path)
    hub.files[NAME] = before
    break_off(hub, file)
    hub.files[NAME] = CONTENT
    if part is not None:
        file.part.write_bytes(part)
        file.note.write_text(json.dumps({**json.loads(file.note.read_text()), "total": None}))
    fetch(file, {}, limits(retries=1))
    assert file.path.read_bytes() == CONTENT
    assert ranges(hub) == asked


def break_off(hub: Hub, file: Wanted) -> None:
    hub.cut_after = [1 << 20]
    with pytest.raises(DownloadError):
        fetch(file, {}, limits())
    hub.seen.clear()


def test_a_part_of_another_file_is_not_gone_on_with(hub: Hub, tmp_path: Path) -> None:
    break_off(hub, wanted(hub, tmp_path, sha256(OTHER)))
    fetch(wanted(hub, tmp_path), {}, limits())
    assert ranges(hub) == [None]


@pytest.mark.parametrize(
    ("chunked", "more", "words"),
    [
        (False, {"digest": "0" * 64}, f"SHA-256 digest {sha256(CONTENT)}, but {'0' * 64} was expected"),
        (False, {"size_bytes": 1000}, "has 3145728 bytes on the server, and 1000 were"),
        (True, {"size_bytes": 1000}, "sends more than the file's 1000 bytes"),
    ],
    ids=["digest", "longer", "longer-of-unknown-length"],
)
def test_another_file_than_the_expected_leaves_nothing(
    hub: Hub, tmp_path: Path, chunked: bool, more: dict[str, Any], words: str
) -> None:
    hub.chunked = chunked
    with pytest.raises(FileError, match=words) as caught:
        fetch(wanted(hub, tmp_path / "new", **more), {}, limits())
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


@pytest.mark.parametrize(
    ("name", "with_token"),
    [("", [("front", True), ("store", False)]), ("renamed/model-GGUF", [("front", True)] * 2 + [("store", False)])],
    ids=["storage-elsewhere", "redirect-on-the-same-host"],
)
def test_the_token_goes_to_the_hub_alone(
    hub: Hub, tmp_path: Path, name: str, with_token: list[tuple[str, bool]]
) -> None:
    hub.token = TOKEN
    url = hub.url(NAME).replace(hub.repo, name or hub.repo)
    fetch(wanted(hub, tmp_path, url=url), {}, limits(), TOKEN)
    assert [(seen.server, "Authorization" in seen.headers) for seen in hub.seen] == with_token


@pytest.mark.parametrize(
    ("behaviour", "token", "words"),
    [
        ({"token": TOKEN}, None, r"\(401\): it needs a token with access"),
        ({"token": TOKEN}, "wrong", r"\(401\): the token lacks access"),
        ({"gated": True}, "any", r"\(403\): the token lacks access"),
        ({"statuses": [404]}, None, r"does not exist \(404\): correct the URL"),
        ({"statuses": [503] * 9}, None, "the server answers 503 .*3 times in a row"),
        ({"statuses": [400]}, None, "the server answers 400"),
        ({"cut_after": [0] * 9}, None, "ended after 0 of 3145728 bytes, 3 times"),
        ({"cut_after": [0] * 9, "chunked": True}, None, "the connection ended before the file"),
        ({"repo": "renamed/model-GGUF"}, None, "redirects too often, or to no URL"),
    ],
    ids=[
        "no-token",
        "wrong-token",
        "gated",
        "missing",
        "out-of-service",
        "bad-request",
        "nothing",
        "chunk",
        "redirects",
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


@pytest.mark.parametrize(
    ("patience", "words"),
    [
        ({"stall": 0.3}, r"localhost has sent nothing for 0\.3 s"),
        (
            {"retries": 99, "stall": 0.2, "total": 0.5},
            "within the time limit of the download; what has arrived is kept",
        ),
    ],
    ids=["silent", "too-long"],
)
def test_a_server_that_falls_silent_is_given_up(hub: Hub, tmp_path: Path, patience: dict[str, Any], words: str) -> None:
    hub.cut_after, hub.stall_s = [1000] * 99, 3
    started = time.monotonic()
    with pytest.raises(DownloadError, match=words):
        fetch(wanted(hub, tmp_path), {}, limits(**patience))
    assert time.monotonic() - started < 2
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


def test_two_runs_fetch_once(hub: Hub, tmp_path: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(lambda _run: fetch(wanted(hub, tmp_path), {}, limits()), range(3)))
    assert sorted(results) == [False, False, True]
    assert len(hub.downloads()) == 1
    assert left(tmp_path) == [f".{NAME}.llama_cpp.json", NAME]


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


def test_a_run_that_was_killed_while_it_joined_is_repaired_without_the_network(hub: Hub, tmp_path: Path) -> None:
    joined(hub, tmp_path)
    (tmp_path / "m.gguf").unlink()
    (tmp_path / "m.gguf.part").write_bytes(b"longer than the whole" + JOINED)
    before = len(hub.seen)
    assert joined(hub, tmp_path) is True
    assert (tmp_path / "m.gguf").read_bytes() == JOINED
    assert left(tmp_path) == [".m", ".m.gguf.llama_cpp.json", "m.gguf"]
    assert len(hub.seen) == before


def test_a_whole_of_somebody_else_or_with_a_wrong_digest(hub: Hub, tmp_path: Path) -> None:
    words = f"m.gguf, joined from 2 pieces, has the SHA-256 digest {sha256(JOINED)}, but {'0' * 64} was expected; the"
    with pytest.raises(FileError, match=words):
        joined(hub, tmp_path / "a", "0" * 64)
    assert (left(tmp_path / "a"), len(left(tmp_path / "a/.m"))) == ([".m"], 4), "the pieces are kept"
    before = len(hub.seen)
    (tmp_path / "m.gguf").write_bytes(JOINED)
    with pytest.raises(FileError, match="already exists and was not put there by this collection"):
        joined(hub, tmp_path)
    assert joined(hub, tmp_path, sha256(JOINED)) is True, "it has the wanted digest"
    assert len(hub.seen) == before


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
    return file_of(tensor(shape=(2 << 18,), kind=kind), tensors=1, room=4 << 20)


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


@pytest.mark.parametrize(
    ("cut", "trouble"),
    [
        # A header that goes on in the next piece is left to the join, and other trouble to the patient download.
        *((cut, {}) for cut in (20, 60)),
        *((0, trouble) for trouble in ({"statuses": [500]}, {"statuses": [404]}, {"cut_after": [10]})),
    ],
)
def test_a_header_that_cannot_be_read_is_left_to_the_download(
    hub: Hub, tmp_path: Path, cut: int, trouble: dict[str, Any]
) -> None:
    for name, value in trouble.items():
        setattr(hub, name, value)
    headed(hub, tmp_path, model_of_type(138), cut)
    assert len(hub.downloads()) == 1
    # What has begun to arrive is not asked for again.
    hub.seen.clear()
    (tmp_path / ("m.gguf.part1of2.part" if cut else "m.gguf.part")).touch()
    headed(hub, tmp_path, model_of_type(138), cut)
    assert hub.seen == []


def test_a_small_file_of_git_is_verified_too(tmp_path: Path) -> None:
    with running_hub({"config.json": b"{}"}, small={"config.json"}) as hub:
        file = Wanted(hub.url("config.json"), tmp_path / "config.json", git_blob(b"{}"))
        assert fetch(file, {}, limits()) is True
        assert fetch(file, {}, limits()) is False
        wrong = Wanted(hub.url("config.json"), tmp_path / "other.json", git_blob(b"[]"))
        with pytest.raises(FileError, match="git object name"):
            fetch(wrong, {}, limits())
