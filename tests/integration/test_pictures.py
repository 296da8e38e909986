# SPDX-License-Identifier: GPL-3.0-or-later
"""Pictures in requests over real workers: they count, the master alone computes them, and nothing is fetched."""

from __future__ import annotations

import base64
import json
import os
import re
import socket
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.header import read_header
from ansible_collections.llama_cpp.cluster.plugins.module_utils._plan.engine import Engine

from support.api_service import (
    ENVIRONMENT,
    FILES,
    ROLE,
    VARIABLES,
    Service,
    running_service,
    service_over_two,
    settings,
)
from support.harness import RELEASE, Release, completed, run_module
from support.templates import loaded, worked_out
from support.tiny_projector import PATCH, TOKENS, picture, write_projector

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.llama

# The model's embeddings have so many numbers (playbooks/files/random_model.py).
PROJECTION = 512
RED, BLUE = picture(255, 0, 0), picture(0, 0, 255)


def options(projector: Path) -> list[str]:
    """Return the options that the role gives llama-server for a projector."""
    given = {**VARIABLES, "llama_server_mmproj": str(projector)}
    words = [str(word) for word in worked_out(VARIABLES["__llama_server_serving"]["options"], given)]
    return words[words.index("--mmproj") : words.index("/dev/null") + 1]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an ffmpeg and an ffprobe that leave a file there when they run."""
    folder = tmp_path_factory.mktemp("programs")
    for name in ("ffmpeg", "ffprobe"):
        (folder / name).write_text(f"#!/bin/sh\ntouch {folder}/ran\n")
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def service(release: Release, model: Path, ran: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("service")
    projector = write_projector(folder / "mmproj.gguf", PROJECTION)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{ran}:{os.environ['PATH']}")
        with service_over_two(release, model, folder, ["--no-ui", *options(projector)]) as running:
            yield running


def asked(service: Service, *parts: dict[str, Any]) -> tuple[int, Any]:
    """Return the status and the answer to a message that has these parts after a text."""
    content = [{"type": "text", "text": "the quiet river"}, *parts]
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 8, "temperature": 0}
    return service.request("/v1/chat/completions", body)


def at(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def test_a_picture_counts_as_the_tokens_of_its_patches(service: Service) -> None:
    counts, texts = {}, {}
    for name, parts in {"none": [], "red": [at(RED)], "blue": [at(BLUE)], "both": [at(RED), at(BLUE)]}.items():
        status, body = asked(service, *parts)
        assert status == 200, body
        counts[name], texts[name] = body["usage"]["prompt_tokens"], body["choices"][0]["message"]["content"]
    assert counts["both"] - counts["red"] == TOKENS
    # The text after the first picture may begin with one more token.
    assert counts["red"] == counts["blue"]
    assert counts["red"] - counts["none"] - TOKENS in (0, 1)
    assert len(set(texts.values())) > 1, "what a picture shows makes no difference"


def test_no_address_is_fetched(service: Service) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        for url in (f"http://127.0.0.1:{port}/a.png", f"https://127.0.0.1:{port}/a.png", f"http://localhost:{port}/"):
            for part in (at(url), {"type": "input_video", "input_video": {"url": url}}):
                status, body = asked(service, part)
                assert (status, body["error"]["message"]) == (
                    400,
                    "this server fetches no media: send the file itself, as a data: URL",
                )
        listener.settimeout(0.5)
        with pytest.raises(TimeoutError):
            listener.accept()
    for url in ("file:///etc/passwd", "file://etc/passwd"):
        status, body = asked(service, at(url))
        assert (status, "file:// URLs are not allowed" in body["error"]["message"]) == (400, True)
    assert f"127.0.0.1:{port}" not in "".join(service.lines), "the log has an address of a client"


@pytest.mark.parametrize("content", [b"RIFF\0\0\0\0WEBPVP8 ", b"\0\0\0\x18ftypmp42", b"neither picture nor video"])
def test_no_program_runs_for_what_is_no_picture(service: Service, ran: Path, content: bytes) -> None:
    url = f"data:image/webp;base64,{base64.b64encode(content * 20).decode()}"
    for part in (at(url), {"type": "input_video", "input_video": {"data": url}}):
        status, _body = asked(service, part)
        assert status == 400
    assert not (ran / "ran").exists()
    assert service.text()


def test_the_role_and_llama_server_refuse_the_same_projector(
    release: Release, model: Path, two: list[str], tmp_path: Path
) -> None:
    other = write_projector(tmp_path / "other.gguf", 2 * PROJECTION)
    said = run_module("gguf_info", {"path": str(model), "mmproj": str(other)})["mmproj_problem"]
    assert said == (
        f"{other} does not fit {model}: it makes vectors of {2 * PROJECTION} numbers, and the model takes "
        f"{PROJECTION}. Take the projector of this model."
    )
    with running_service(release, model, two, tmp_path, options=options(other)) as running:
        assert running.process.wait(120) == 1
        assert any("mismatch between text model" in line for line in running.lines), running.lines
    fits = write_projector(tmp_path / "fits.gguf", PROJECTION)
    assert run_module("gguf_info", {"path": str(model), "mmproj": str(fits)})["mmproj_problem"] == ""


def test_the_encoder_is_on_the_master_and_its_buffer_as_planned(
    release: Release, model: Path, two: list[str], tmp_path: Path
) -> None:
    side = 20 * PATCH
    projector = write_projector(tmp_path / "mmproj.gguf", PROJECTION, image=side, width=128, inner=512)
    given = [*options(projector), "-lv", "4"]
    with running_service(release, model, two, tmp_path, options=given) as running:
        running.wait_for("Serving")
        assert asked(running, at(picture(0, 255, 0, side)))[0] == 200
        # The text model is loaded before the projector.
        _before, marker, said = "".join(running.lines).partition("CLIP using")
    assert marker
    assert re.match(r" CPU\S* backend", said)
    assert not re.search(r"RPC\S* .*buffer", said)
    (real,) = {float(size) for size in re.findall(r"CPU compute buffer size = +([\d.]+) MiB", said)}
    with closing(Engine(str(release.plan), str(model), [1, 1])) as engine:
        held = engine.ask(["-c", "512", "-np", "1", "--mmproj", str(projector), "--no-mmproj-offload"])
    weights = sum(tensor.bytes or 0 for tensor in read_header(projector).tensors)
    planned = (held.on("", "projector").total - weights) / (1 << 20)
    assert planned == pytest.approx(real, abs=0.01)


def test_a_release_that_would_fetch_is_not_started(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin/llama-server"
    keys = tmp_path / "keys"
    keys.write_text("key-of-this-test-alone\n")
    stand_in = RELEASE
    written = settings(stand_in, tmp_path / "m.gguf", ["127.0.0.1:1"], 1, keys, options(tmp_path / "p.gguf"))
    (tmp_path / "settings.json").write_text(json.dumps({**written, "program": str(program)}))
    for patches in ([], [{"name": "rpc-load", "sha256": "0"}]):
        (tmp_path / "manifest.json").write_text(json.dumps({"patches": patches}))
        done = completed(sys.executable, FILES / "llama_server_service.py", tmp_path / "settings.json", **ENVIRONMENT)
        assert (done.returncode, done.stderr) == (2, "")
        assert done.stdout.startswith(f"{program} lacks the patch programs, so with a projector it would fetch")


@pytest.mark.parametrize(
    ("manifest", "fetches"),
    [
        ({"patches": [{"name": "programs"}]}, False),
        ({"patches": [{"name": "rpc-load"}]}, True),
        ({"rpc_protocol": "2.0.0"}, True),
        ({}, False),
    ],
    ids=["patched", "patched-otherwise", "of-before", "none-there"],
)
def test_the_role_knows_which_release_would_fetch(manifest: dict[str, Any], fetches: bool) -> None:
    given = {**VARIABLES, "llama_server_mmproj": "/srv/models/mmproj.gguf", "__llama_server_manifest": manifest}
    [check] = [task for task in loaded(ROLE / "tasks/inspect.yml") if task["name"] == "Check that no problem was found"]
    [rule] = [rule for rule in check["vars"]["__llama_server_facts"] if "patch programs" in rule["else"]]
    assert worked_out(rule["holds"], given) is not fetches
