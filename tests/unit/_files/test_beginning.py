# SPDX-License-Identifier: GPL-3.0-or-later
"""The header of a model without its weights, over real HTTP on loopback, and the headers of shapes."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import gguf
import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._files import web
from ansible_collections.llama_cpp.cluster.plugins.module_utils._files.beginning import WITHOUT_RANGES_BYTES
from ansible_collections.llama_cpp.cluster.plugins.module_utils._files.web import DownloadError
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf import header as headers
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.header import (
    GgufError,
    part_names,
    read_header,
    read_model,
)
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.model import describe
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.shapes import SHAPES, Shape
from ansible_collections.llama_cpp.cluster.plugins.modules import gguf_header

from support.gguf_headers import ARRAY, TEXT, array_of, file_of, pair, tensor, text
from support.hub_stand_in import SIGNATURE, Hub, running_hub
from support.split_gguf import SPLITTER
from support.synthetic_models import write_synthetic

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MIB = 1 << 20
TOKEN = "hf_neverseenanywhere"
NAME = "m.gguf"
WEIGHTS = 48 * MIB


def model_with(tokens: int) -> bytes:
    """Return a GGUF file of one tensor, with a vocabulary of so many tokens of 24 bytes."""
    entries = (
        pair(b"general.architecture", TEXT, text(b"llama")),
        pair(b"tokenizer.ggml.tokens", ARRAY, array_of(TEXT, tokens) + text(b"0123456789abcdefghijklmn") * tokens),
        tensor(b"token_embd.weight", (WEIGHTS // 4,)),
    )
    head = file_of(*entries, pairs=2, tensors=1, room=0)
    return head + bytes(-len(head) % 32) + bytes(WEIGHTS)


CONTENT = model_with(60_000)  # with a header of 1.8 MiB
HEADER = len(CONTENT) - WEIGHTS


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub({NAME: CONTENT}) as hub:
        yield hub


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "LONGEST_PAUSE_S", 0.01)


def get(folder: Path, url: str = "", **options: Any) -> dict[str, Any]:
    """Return what the module returns."""
    defaults = {"shape": None, "token": None, "timeout": 20, "stall_timeout": 5, "retries": 2}
    return gguf_header.get({**defaults, "url": url, "dest": str(folder), **options})


def asked(hub: Hub) -> list[str]:
    return [seen.headers["Range"].replace("bytes=", "") for seen in hub.downloads()]


def is_header_of_content(path: Path) -> None:
    """Check that a file is read as the model is, has its size, and takes little room on the disk."""
    header = read_header(path)
    assert (header.lengths["tokenizer.ggml.tokens"], header.start_bytes) == (60_000, HEADER)
    assert header.end_bytes == path.stat().st_size == len(CONTENT)
    assert path.stat().st_blocks * 512 < 2 * HEADER + MIB


def test_a_header_is_fetched_in_ranges_and_the_weights_are_not(hub: Hub, tmp_path: Path) -> None:
    result = get(tmp_path / "new", hub.direct(NAME))
    assert result["path"] == str(tmp_path / "new" / NAME)
    is_header_of_content(tmp_path / "new" / NAME)
    assert asked(hub) == ["0-262143", "262144-524287", "524288-1048575", "1048576-2097151"]
    assert HEADER < result["fetched_bytes"] < HEADER + 2 * MIB
    assert hub.sent_bytes < HEADER + 3 * MIB


@pytest.mark.parametrize("chunked", [False, True], ids=["with-its-length", "of-unknown-length"])
def test_a_server_without_ranges_is_left_after_the_header(hub: Hub, tmp_path: Path, chunked: bool) -> None:
    hub.ranges, hub.chunked = False, chunked
    result = get(tmp_path, hub.direct(NAME))
    is_header_of_content(tmp_path / NAME)
    assert asked(hub) == ["0-262143"]
    assert HEADER <= result["fetched_bytes"] <= WITHOUT_RANGES_BYTES
    # The buffers of both ends of the connection hold some MiB more.
    assert hub.sent_bytes < WEIGHTS // 2


def test_an_interrupted_header_continues_where_it_was(hub: Hub, tmp_path: Path) -> None:
    hub.cut_after = [None, 100_000, 0]
    result = get(tmp_path, hub.direct(NAME))
    is_header_of_content(tmp_path / NAME)
    assert asked(hub)[:4] == ["0-262143", "262144-524287", "362144-524287", "362144-524287"]
    assert hub.downloads()[2].headers["If-Range"].startswith('"')
    assert result["fetched_bytes"] < HEADER + 3 * MIB


def test_an_interrupted_header_begins_anew_without_ranges_and_that_ends(hub: Hub, tmp_path: Path) -> None:
    hub.ranges, hub.cut_after = False, [MIB]
    get(tmp_path, hub.direct(NAME))
    is_header_of_content(tmp_path / NAME)
    hub.seen.clear()
    hub.cut_after = [MIB] * 9
    with pytest.raises(DownloadError, match=r"the connection ended after 1048576 of \d+ bytes, 3 times in a row; run"):
        get(tmp_path, hub.direct(NAME))
    assert len(hub.downloads()) == 3, "two retries bring nothing new"


def test_a_model_that_changes_meanwhile_is_read_again(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.files[NAME] = model_with(70_000)
    ask, calls = web.request, []

    def request(*given: Any, **options: Any) -> Any:
        calls.append(given)
        if len(calls) == 3:
            hub.files[NAME] = CONTENT
        return ask(*given, **options)

    monkeypatch.setattr(sys.modules[gguf_header.Beginning.__module__], "request", request)
    get(tmp_path, hub.direct(NAME))
    is_header_of_content(tmp_path / NAME)


def test_parts_that_are_missing_or_of_another_model_are_named(tmp_path: Path) -> None:
    whole, names = write_synthetic(tmp_path / "whole.gguf", "dense", layers=3), part_names("m-00001-of-00003.gguf")
    subprocess.run([sys.executable, SPLITTER, str(whole), str(tmp_path / "m"), "3"], check=True, timeout=60)
    parts = {name: (tmp_path / name).read_bytes() for name in names}
    with running_hub({**parts, names[2]: parts[names[1]]}) as hub:
        with pytest.raises(GgufError, match=f"{names[2]} says that it is part 1 of a split"):
            get(tmp_path / "new", hub.direct(names[0]))
        del hub.files[names[1]]
        with pytest.raises(DownloadError, match=rf"/{names[1]} does not exist \(404\): correct the URL\.$"):
            get(tmp_path / "new", hub.direct(names[0]))


@pytest.mark.parametrize(
    ("behaviour", "options", "words"),
    [
        ({"token": TOKEN}, {"token": "wrong"}, r"is refused \(401\): the token lacks access\.$"),
        ({"statuses": [416]}, {}, r"is not a complete GGUF model: it is empty; give the URL of a GGUF file\.$"),
        ({"cut_after": [0] * 9}, {}, r"the connection ended after 0 of 262144 bytes, 3 times in a row; run this again"),
        (
            {"cut_after": [9] * 99, "stall_s": 2},
            {"stall_timeout": 0.2, "retries": 99, "timeout": 0.5},
            r"did not finish within the time limit of the download; allow it more time\.$",
        ),
        ({"files": {NAME: b"<!DOCTYPE html>"}}, {}, r"it is a web page, such as .*; give the URL of a GGUF file\.$"),
        ({"files": {NAME: CONTENT[: MIB // 2]}}, {}, "its header is damaged or cut off"),
        ({"files": {NAME: CONTENT[:-9]}}, {}, rf"{len(CONTENT) - 9} bytes and should have {len(CONTENT)}: the copy"),
    ],
    ids=[
        "token",
        "empty-range",
        "nothing",
        "too-long",
        "web-page",
        "cut-off",
        "incomplete",
    ],
)
def test_what_cannot_be_read_is_a_sentence(
    hub: Hub, tmp_path: Path, behaviour: dict[str, Any], options: dict[str, Any], words: str
) -> None:
    for name, value in behaviour.items():
        setattr(hub, name, value)
    with pytest.raises((DownloadError, GgufError), match=words) as caught:
        get(tmp_path, hub.url(NAME), **options)
    assert TOKEN not in str(caught.value)
    assert SIGNATURE not in str(caught.value)


def test_a_header_that_never_ends_is_given_up(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headers, "HEADER_LIMIT", MIB)
    for hub.ranges in (True, False):
        hub.sent_bytes = 0
        with pytest.raises(GgufError, match="its header is longer than 1 MiB, so it is damaged or not a model's; give"):
            get(tmp_path, hub.direct(NAME))
        assert hub.sent_bytes < WEIGHTS // 2


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://models.example.com/a%20b.gguf?x=1", "a b.gguf"),
        ("https://models.example.com/..%2F..%2Fetc%2Fpasswd.gguf", "passwd.gguf"),
        ("https://models.example.com/download?id=7", "model.gguf"),
    ],
)
def test_a_file_gets_a_name_within_the_folder(url: str, name: str) -> None:
    assert gguf_header.parts_of(url) == [(name, url)]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_a_shape_is_a_model_to_llama_cpp_s_own_reader(tmp_path: Path, shape: Shape) -> None:
    path = get(tmp_path, shape=shape.name)["path"]
    model = describe(read_model(tmp_path / "model.gguf"))
    kind = "MXFP4 MoE" if shape.architecture == "gpt-oss" else "Q4_0"
    assert (model.name, model.file_type, model.shape.layers, model.notes) == (shape.name, kind, shape.layers, [])
    assert (tmp_path / "model.gguf").stat().st_blocks * 512 < MIB
    tensors = gguf.GGUFReader(path).tensors
    assert sum(int(tensor.n_bytes) for tensor in tensors) == model.weights.bytes
    assert sum(int(tensor.n_elements) for tensor in tensors) == model.parameters
