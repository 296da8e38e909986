# SPDX-License-Identifier: GPL-3.0-or-later
"""The role `gguf_model`, run by a real ansible-playbook on this machine.

The hub and the web server are a stand-in on loopback (hub_stand_in.py); the model is a small one of random weights.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from support.harness import CACHE, ROOT, Release
from support.hub_stand_in import SIGNATURE, Hub, running_hub, sha256
from support.small_disk import small_disk
from support.split_gguf import SPLITTER
from support.stand_in_source import Run, ended, run_on_hosts, said_of, started

TOKEN = "hf_neverseenanywhere"
PARTS = [f"model-{number:05}-of-00003.gguf" for number in (1, 2, 3)]
UNCUT_HEADER = [None]  # one request for a header
PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.include_role:
        name: llama_cpp.cluster.gguf_model
        tasks_from: "{{ entry | default('main') }}"
"""


@dataclass
class Site:
    """A master whose models are in a folder of this machine."""

    folder: Path
    variables: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.models = self.folder / "srv" / "models"
        self.path = self.models / "model.gguf"
        (self.folder / "play.yml").write_text(PLAY)

    def run(self, *options: str, **variables: Any) -> Run:
        merged = {
            "gguf_model_path": str(self.path),
            "__gguf_model_retries": 0,
            "llama_cpp_manage_packages": False,
            "__gguf_model_venv": str(self.folder / "venv"),
            **self.variables,
            **variables,
        }
        return ended(started(self.folder, merged, *options, ANSIBLE_ASYNC_DIR=str(self.folder / "async")))

    def ok(self, *options: str, **variables: Any) -> Run:
        run = self.run(*options, **variables)
        assert run.code == 0, run.text
        return run

    def refused(self, *words: str, **variables: Any) -> Run:
        run = self.run(**variables)
        assert run.code != 0
        assert run.holds(*words), run.text
        return run

    def names(self) -> list[str]:
        return sorted(path.name for path in self.models.iterdir()) if self.models.exists() else []


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture(scope="session")
def parts(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return the paths of a split model of three parts."""
    folder = tmp_path_factory.mktemp("split")
    splitter = [sys.executable, SPLITTER, model, folder / "model", "3"]
    subprocess.run([str(word) for word in splitter], check=True, timeout=300)
    return [folder / name for name in PARTS]


@contextmanager
def hub_of(model: Path, **behaviour: Any) -> Iterator[Hub]:
    with running_hub({"model.gguf": model.read_bytes()}, **behaviour) as hub:
        yield hub


def weights(hub: Hub) -> list[str | None]:
    """Return the ranges of all downloads but those of headers, which alone have an end."""
    asked = [seen.headers.get("Range") for seen in hub.downloads()]
    return [each for each in asked if not each or each.endswith("-")]


def hub_variables(hub: Hub, **more: Any) -> dict[str, Any]:
    return {
        "gguf_model_hf_repo": hub.repo,
        "gguf_model_hf_file": "model.gguf",
        "gguf_model_hf_endpoint": hub.endpoint,
        **more,
    }


@pytest.mark.long
def test_a_file_of_the_controller_is_sent_once_and_again_when_it_has_changed(site: Site, model: Path) -> None:
    mine = site.folder / "mine.gguf"
    shutil.copy2(model, mine)
    site.variables["gguf_model_source"] = str(mine)
    checked = site.ok("--check")
    assert checked.changed > 0
    assert not site.models.exists()
    site.ok()
    assert site.path.read_bytes() == model.read_bytes()
    assert site.names() == [".model.gguf.llama_cpp.json", "model.gguf"]
    assert site.ok(gguf_model_sha256=sha256(mine.read_bytes())).changed == 0
    site.refused("nothing was sent", "0" * 64, gguf_model_sha256="0" * 64)
    with mine.open("ab") as stream:
        stream.write(b"\0" * 32)
    site.ok()
    assert site.path.read_bytes() == mine.read_bytes()
    site.path.write_bytes(b"damaged")
    site.ok()
    assert site.path.read_bytes() == mine.read_bytes(), "what was changed on the master is noticed"


def test_a_url_is_fetched_once_and_a_broken_download_goes_on(site: Site, model: Path) -> None:
    # The header is read first, in check mode too.
    with hub_of(model, cut_after=[*UNCUT_HEADER, *UNCUT_HEADER, 1 << 20]) as hub:
        site.variables.update(gguf_model_source=hub.direct("model.gguf"), gguf_model_sha256=sha256(model.read_bytes()))
        checked = site.ok("--check")
        assert checked.changed > 0
        assert not site.models.exists()
        site.refused("the connection ended after 1048576 of")
        assert site.names() == [".model.gguf.part.json", "model.gguf.part"]
        site.ok()
        assert weights(hub) == [None, "bytes=1048576-"]
        before = len(hub.seen)
        assert site.ok().changed == 0
        assert len(hub.seen) == before
    assert site.path.read_bytes() == model.read_bytes()


def test_a_file_of_a_hub_is_fetched_with_a_token_that_is_never_shown(site: Site, model: Path) -> None:
    with hub_of(model, token=TOKEN, gated=True) as hub:
        site.variables.update(hub_variables(hub))
        site.refused("someone/model-GGUF is gated, and no token was given")
        unknown = f"{hub.endpoint} has no repository someone/mode-GGUF, or none that is public: correct its owner"
        hub.gated, hub.token = False, None
        site.refused(unknown, gguf_model_hf_repo="someone/mode-GGUF")
        hub.gated, hub.token = True, TOKEN
        wrong = site.refused("is gated, and the token lacks access to it", gguf_model_hf_token=f"{TOKEN}x")
        assert TOKEN not in wrong.text
        site.variables["gguf_model_hf_token"] = TOKEN
        site.refused("gguf_model_sha256 is", "0" * 64, gguf_model_sha256="0" * 64)
        assert not site.models.exists()
        run = site.ok("-vvv", "--diff")
        assert TOKEN not in run.text
        assert SIGNATURE not in run.text
        assert all("Authorization" not in seen.headers for seen in hub.seen if seen.server == "store")
        record = json.loads((site.models / ".model.gguf.llama_cpp.json").read_text())
        assert record["origin"]["repo"] == "someone/model-GGUF"
        assert TOKEN not in json.dumps(record)
    # The hub is gone, and a model that is already there does not need it.
    assert site.ok().changed == 0
    assert not [path for path in (site.folder / "async").rglob("*") if path.is_file() and TOKEN in path.read_text()]


@pytest.mark.parametrize(
    "source", [pytest.param("controller", marks=pytest.mark.long), "url", pytest.param("hub", marks=pytest.mark.long)]
)
def test_all_parts_of_a_split_model_come_together(site: Site, parts: list[Path], source: str) -> None:
    site.path = site.models / PARTS[0]
    with running_hub({path.name: path.read_bytes() for path in parts}) as hub:
        site.variables.update(
            {
                "controller": {"gguf_model_source": str(parts[0])},
                "url": {
                    "gguf_model_files": [
                        {"url": hub.direct(path.name), "sha256": sha256(path.read_bytes())} for path in parts
                    ]
                },
                "hub": hub_variables(hub, gguf_model_hf_file=PARTS[0]),
            }[source]
        )
        if source == "hub":
            site.refused("stands for 1", gguf_model_path=str(site.models / "model.gguf"))
            assert not site.models.exists()
        assert SIGNATURE not in site.ok("-vvv", "--diff").text
        assert [name for name in site.names() if not name.startswith(".")] == PARTS
        if source == "url":
            assert site.ok().changed == 0
        (site.models / PARTS[1]).unlink()
        if source == "controller":
            site.refused(f"{PARTS[1]} is missing beside it", gguf_model_source="")
        site.ok()
        assert [(site.models / name).read_bytes() for name in PARTS] == [path.read_bytes() for path in parts]


PIECES = {
    "hub": [f"folder/model.gguf.part{number}of3" for number in (1, 2, 3)],
    "url": [f"model.gguf-split-{letter}" for letter in "abc"],
    "controller": [f"model.gguf.part{number}of3" for number in (1, 2, 3)],
}


def cut(model: Path, source: str) -> dict[str, bytes]:
    """Return three pieces of a model by their names."""
    content = model.read_bytes()
    size = -(-len(content) // 3)
    return {name: content[size * number : size * (number + 1)] for number, name in enumerate(PIECES[source])}


def pieces_variables(hub: Hub, folder: Path, source: str) -> dict[str, Any]:
    """Return the variables of a source whose pieces the hub has; those of the controller are put into a folder."""
    names = PIECES[source]
    if source == "hub":
        return hub_variables(hub, gguf_model_hf_file=names[0])
    if source == "url":
        listed = [{"url": hub.direct(name), "sha256": sha256(hub.files[name])} for name in names]
        return {"gguf_model_files": listed}
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_bytes(hub.files[name])
    return {"gguf_model_source": str(folder / names[0])}


@pytest.mark.parametrize(
    "source",
    [pytest.param(name, marks=() if name == "url" else pytest.mark.long) for name in ("hub", "url", "controller")],
)
def test_pieces_of_a_file_are_joined_once(site: Site, model: Path, source: str) -> None:
    mine = site.folder / "mine"
    digest = sha256(model.read_bytes())
    with running_hub(cut(model, source)) as hub:
        site.variables.update(pieces_variables(hub, mine, source))
        assert site.ok("--check").changed > 0
        assert not site.models.exists()
        assert weights(hub) == []
        if source == "hub":
            # The header, then the last piece, which stays, and a part of the second one.
            hub.cut_after = [*UNCUT_HEADER, None, 1 << 20]
            site.refused("the connection ended after 1048576 of")
            hub.seen.clear()
            site.ok()
            assert weights(hub) == ["bytes=1048576-", None]
        else:
            assert SIGNATURE not in site.ok("-vvv", "--diff").text
        assert site.path.read_bytes() == model.read_bytes()
        assert site.names() == [".model.gguf.llama_cpp.json", "model.gguf"], "the pieces are gone"
        record = json.loads((site.models / ".model.gguf.llama_cpp.json").read_text())
        assert (record["sha256"], record["origin"]["source"]) == (digest, source)
        before = len(hub.seen)
        assert site.ok().changed == 0
        assert site.ok("--check").changed == 0
        # A run that was killed just after the model was there.
        touch(site.models / ".model.gguf.source" / Path(PIECES[source][0]).name, 1000)
        site.ok()
        assert site.names() == [".model.gguf.llama_cpp.json", "model.gguf"]
        assert len(hub.seen) == before
        if source == "controller":
            assert sorted(path.name for path in mine.iterdir()) == PIECES[source]
            assert site.ok(gguf_model_sha256=digest).changed == 0
            site.refused(digest, "0" * 64, gguf_model_sha256="0" * 64)
            assert site.path.read_bytes() == model.read_bytes()
            (mine / PIECES[source][1]).unlink()
            site.refused("On the controller: ", f"and there is no {PIECES[source][1]} beside it")


def test_a_model_that_llama_cpp_refuses_is_not_downloaded(site: Site) -> None:
    tensor = struct.pack("<Q", 1) + b"t" + struct.pack("<IQIQ", 1, 256, 138, 0)
    content = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + tensor + bytes(60 << 20)
    words = (" is of type 138 of ik_llama.cpp, a fork, and llama.cpp does not read it", "nothing was fetched.")
    # Also at the beginning of site, before llama.cpp is compiled.
    for ranges, entry in ((True, "source"), (False, "main")):
        with running_hub({"model.gguf": content}, ranges=ranges) as hub:
            assert site.refused(*words, **hub_variables(hub, entry=entry)).changed == 0
            assert weights(hub) == []
            assert hub.sent_bytes < len(content)
    assert not site.models.exists()


def test_a_model_that_is_there_is_only_looked_at_and_what_is_unusual_is_shown(site: Site) -> None:
    tensor = struct.pack("<Q", 2) + b"t." + struct.pack("<IQIQ", 1, 32, 0, 0)
    content = (b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + tensor).ljust(64, b"\0") + bytes(128)
    site.models.mkdir(parents=True)
    site.path.write_bytes(content)
    run = site.ok()
    assert (run.changed, site.names()) == (0, ["model.gguf"])
    assert run.holds("node: ", "general.architecture is missing, so only the weights are known.")


BAD = {
    "folder": ({}, "it is a folder: name the GGUF file in it"),
    "missing": ({}, "there is no such file. Put it there, or say where it comes from in gguf_model_source"),
    "empty": ({}, "it is empty"),
    "page": ({}, "it is a web page"),
    "cut-off": ({}, "it has 10485760 bytes and should have"),
    "not-ours": ({"gguf_model_source": "MODEL"}, "already exists and was not put there"),
    "relative": ({"gguf_model_path": "model.gguf"}, "give the absolute path of the GGUF file on the master"),
    "two-sources": (
        {"gguf_model_source": "http://127.0.0.1/x", "gguf_model_hf_repo": "a/b"},
        "gguf_model_source and gguf_model_hf_repo are both given: give one source",
    ),
    "no-digest": (
        {"gguf_model_source": f"http://me:word@127.0.0.1/x?{SIGNATURE}"},
        "give the SHA-256 digest of http://127.0.0.1/x, 64 hexadecimal digits",
    ),
    "quantisation": (
        {"gguf_model_convert_from": "/srv/model", "gguf_model_quantization": "Q4_9"},
        'gguf_model_quantization is "Q4_9": give one of F32, F16',
    ),
    "no-source-folder": (
        {"gguf_model_convert_from": "/nonexistent"},
        "is not a folder with config.json and safetensors",
    ),
    "no-programs": (
        {"gguf_model_convert_from": "SOURCE", "llama_cpp_prefix": "/nowhere"},
        "lacks /nowhere/current/share/llama.cpp/convert_hf_to_gguf.py and /nowhere/current/bin/llama-quantize",
    ),
    "one-piece": (
        {"gguf_model_source": "http://127.0.0.1/m.gguf.part1of2?x", "gguf_model_sha256": "0" * 64},
        "gguf_model_source names a piece of a file that was cut: list all pieces with their digests in",
    ),
    "pieces-in-disorder": (
        {
            "gguf_model_files": [
                {"url": f"http://127.0.0.1/m.gguf.part{number}of2", "sha256": "0" * 64} for number in (2, 1)
            ]
        },
        "m.gguf.part2of2, m.gguf.part1of2 are not all pieces of one file in order: list all of them",
    ),
    "unreachable": (
        {"gguf_model_source": "http://127.0.0.1:1/model.gguf", "gguf_model_sha256": "0" * 64},
        "http://127.0.0.1:1/model.gguf could not be fetched: 127.0.0.1 refuses connections",
    ),
    "unknown-host": (
        {"gguf_model_hf_repo": "a/b", "gguf_model_hf_file": "c.gguf", "gguf_model_hf_endpoint": "http://no.invalid"},
        "the name no.invalid cannot be resolved",
    ),
    "controller-missing": ({"gguf_model_source": "/nonexistent.gguf"}, "On the controller: /nonexistent.gguf"),
}


@pytest.fixture(scope="module")
def bad_input(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Run]:
    """Run all bad inputs in one play, each as a host of its own; return the models' folder and the run."""
    site = Site(tmp_path_factory.mktemp("bad"))
    site.models.mkdir(parents=True)
    hosts = {}
    for case, (variables, _words) in BAD.items():
        hosts[case] = {"gguf_model_path": str(site.models / f"{case}.gguf"), **variables}
    hosts["not-ours"]["gguf_model_source"] = str(model)
    hosts["no-programs"]["gguf_model_convert_from"] = str(site.folder / "source")
    touch(site.folder / "source/config.json", 2)
    touch(site.folder / "source/model.safetensors", 1)
    (site.models / "folder.gguf").mkdir()
    (site.models / "empty.gguf").touch()
    (site.models / "page.gguf").write_text("<html><body>Please log in</body></html>")
    (site.models / "cut-off.gguf").write_bytes(model.read_bytes()[: 10 << 20])
    (site.models / "not-ours.gguf").write_bytes(b"GGUF, but mine")
    return site.models, run_on_hosts(
        site.folder, hosts, {"__gguf_model_retries": 0, "llama_cpp_manage_packages": False}
    )


@pytest.mark.parametrize(("case", "words"), [(case, words) for case, (_variables, words) in BAD.items()], ids=BAD)
def test_bad_input_is_a_sentence(bad_input: tuple[Path, Run], case: str, words: str) -> None:
    assert Run(1, said_of(case, bad_input[1].text)).holds(words)


def test_bad_input_changes_nothing(bad_input: tuple[Path, Run]) -> None:
    models, run = bad_input
    left = ["cut-off.gguf", "empty.gguf", "folder.gguf", "not-ours.gguf", "page.gguf"]
    assert sorted(path.name for path in models.iterdir()) == left
    assert (models / "not-ours.gguf").read_bytes() == b"GGUF, but mine"
    assert run.changed == 0


def test_a_wrong_digest_names_both_and_leaves_nothing(site: Site, model: Path) -> None:
    found = sha256(model.read_bytes())
    with hub_of(model) as hub:
        site.refused(
            f"has the SHA-256 digest {found}, but {'0' * 64} was expected",
            gguf_model_source=hub.direct("model.gguf"),
            gguf_model_sha256="0" * 64,
        )
    assert site.names() == []
    site.refused(found, "0" * 64, gguf_model_source=str(model), gguf_model_sha256="0" * 64)
    assert site.names() == []


def touch(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as stream:
        stream.truncate(size)


def test_a_full_disk_is_named_with_what_is_missing_before_anything_is_written(site: Site, model: Path) -> None:
    touch(site.folder / "release/bin/llama-quantize", 0)
    touch(site.folder / "release/share/llama.cpp/convert_hf_to_gguf.py", 0)
    touch(site.folder / "source/config.json", 2)
    touch(site.folder / "source/model.safetensors", 15 << 20)
    files = {"model.gguf": model.read_bytes(), **cut(model, "hub")}
    with small_disk(site.models, "size=8m"), running_hub(files) as hub:
        # A conversion needs room for the F16 file and for the result, and pieces for themselves and the whole.
        cases = {
            "controller": ({"gguf_model_source": str(model)}, "0.02"),
            "hub": (hub_variables(hub), "0.02"),
            "convert": ({"gguf_model_convert_from": str(site.folder / "source")}, "0.02"),
            "pieces": (hub_variables(hub, gguf_model_hf_file=PIECES["hub"][0]), "0.05"),
        }
        hosts = {
            name: {"gguf_model_path": f"{site.models}/{name}.gguf", **given} for name, (given, _gib) in cases.items()
        }
        common = {
            "__gguf_model_bin_folder": str(site.folder / "release/bin"),
            "__gguf_model_retries": 0,
            "__gguf_model_venv": str(site.folder / "venv"),
            "llama_cpp_manage_packages": False,
        }
        # A task that goes on by itself is found again if HOME is not the home of the account.
        run = run_on_hosts(site.folder, hosts, common, HOME=str(site.folder / "home"))
        for name, (_given, needed) in cases.items():
            missing = f"needs {needed} GiB on {site.models}, where 0.01 GiB are free: 0.0"
            assert Run(1, said_of(name, run.text)).holds(missing, "GiB are missing; nothing was changed"), run.text
        assert hub.downloads() == []
        assert site.names() == []


@pytest.mark.long
def test_removal_takes_what_the_role_has_put_there_and_no_more(site: Site, model: Path) -> None:
    site.variables["gguf_model_source"] = str(model)
    site.ok()
    shutil.copy(model, site.models / "mine.gguf")
    site.ok("--check", entry="remove", gguf_model_remove_files=True)
    assert site.path.exists()
    site.ok(entry="remove")
    assert site.names() == ["mine.gguf", "model.gguf"]
    assert site.ok(entry="remove").changed == 0
    site.ok()
    site.ok(entry="remove", gguf_model_remove_files=True)
    assert site.names() == ["mine.gguf", "model.gguf"], "without a record it was found there, so it stays"
    site.path.unlink()
    site.ok()
    site.ok(entry="remove", gguf_model_remove_files=True)
    assert site.names() == ["mine.gguf"]


# Upstream's converter lets a model's own classes run (trust_remote_code=True). This one says what they would find.
CONVERTER = """
import json, os, re, socket, sys
from pathlib import Path

source, out = Path(sys.argv[1]), Path(sys.argv[3])
config = json.loads((source / "config.json").read_text())
for name in config["auto_map"].values():
    if (source / f"{name}.py").exists():
        exec((source / f"{name}.py").read_text())
caps, confined = re.findall(r"^(?:CapEff|NoNewPrivs):\\s*(\\w+)", Path("/proc/self/status").read_text(), re.MULTILINE)
reached = not socket.socket().connect_ex(("127.0.0.1", config["port"]))
seen = os.access(config["seen"], os.R_OK)
print(source.name, sorted(path.name for path in source.iterdir()))
print(f"root={os.getuid() == 0} caps={int(caps, 16)} confined={confined} reached={reached} seen={seen}")
out.write_bytes((source / "model.safetensors").read_bytes())
sys.exit(config["status"])
"""


def test_the_converter_gets_no_program_of_the_model_and_no_privilege(site: Site, model: Path) -> None:
    source, marker = site.folder / "Some-Model", site.folder / "marker"
    touch(site.folder / "release/bin/llama-quantize", 0)
    touch(site.folder / "release/share/llama.cpp/convert_hf_to_gguf.py", 0)
    (site.folder / "release/share/llama.cpp/convert_hf_to_gguf.py").write_text(CONVERTER)
    program = source / "modeling_x.py"
    touch(program, 0)
    program.write_text(f"Path({str(marker)!r}).touch()")
    shutil.copy(model, source / "model.safetensors")
    site.variables.update(
        gguf_model_convert_from=f"{source}/",
        gguf_model_convert_python=sys.executable,
        __gguf_model_bin_folder=str(site.folder / "release/bin"),
        gguf_model_quantization="F16",
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = {"auto_map": {"AutoModel": "modeling_x"}, "port": listener.getsockname()[1], "seen": str(program)}
        (source / "config.json").write_text(json.dumps({**config, "status": 1}))
        run = site.refused("could not be made into", "Some-Model ['config.json', 'model.safetensors']")
        assert not marker.exists()
        if os.geteuid() == 0:
            assert run.holds("root=False caps=0 confined=1 reached=False seen=False")
            (source / "config.json").chmod(0o600)
            site.refused(f"the account nobody may not read {source}/config.json: let every account read it")
        (source / "config.json").unlink()
        (source / "config.json").write_text(json.dumps({**config, "status": 0}))
        site.ok()
    assert site.path.read_bytes() == model.read_bytes()
    assert (site.path.stat().st_uid, site.path.stat().st_mode & 0o777) == (os.geteuid(), 0o644)
    assert site.names() == [".model.gguf.llama_cpp.json", "model.gguf"]
    assert site.ok().changed == 0


def text_of(release: Release, model: Path) -> str:
    command = [release.bin / "llama-completion", "-no-cnv", "-m", model, "-p", "the river", "-n", "8", "--temp", "0"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=300, check=True)
    return done.stdout.decode("utf-8", "replace").strip()


@pytest.mark.long
@pytest.mark.llama
def test_safetensors_are_converted_and_quantised_and_run(site: Site, release: Release) -> None:
    venv = CACHE / "converter"
    variables = {
        "gguf_model_convert_from": str(site.folder / "source"),
        "__gguf_model_bin_folder": str(release.bin),
        "__gguf_model_venv": str(venv),
    }
    site.variables.update(variables)
    # The first run fails, but it makes the environment that can write the source.
    (site.folder / "source").mkdir()
    (site.folder / "source/config.json").write_text("{}")
    (site.folder / "source/model.safetensors").write_bytes(b"")
    site.refused("could not be made into", "(Convert the model to GGUF)")
    assert [name for name in site.names() if name.endswith(".gguf")] == []
    shutil.rmtree(site.folder / "source")
    write = [venv / "venv/bin/python", ROOT / "tests/integration/tiny_safetensors.py", site.folder / "source"]
    subprocess.run(write, check=True, timeout=300)

    checked = site.ok("--check")
    assert checked.holds("would be converted and quantised to Q4_0")
    site.ok()
    assert site.names() == [".model.gguf.llama_cpp.json", "model.gguf"], "what was only needed on the way is gone"
    assert text_of(release, site.path)
    record = json.loads((site.models / ".model.gguf.llama_cpp.json").read_text())
    assert record["made_with"] == release.prefix.joinpath("current").resolve().name
    size = site.path.stat().st_size
    assert site.ok().changed == 0

    site.ok(gguf_model_quantization="q8_0")
    assert site.path.stat().st_size > size
    assert [name for name in site.names() if not name.startswith(".")] == ["model.gguf"]
    files = {path.name: path.read_bytes() for path in (site.folder / "source").iterdir()}
    (site.folder / "hub").mkdir()
    other = Site(site.folder / "hub", site.variables)
    with running_hub({**files, "evil.py": b"raise SystemExit(1)"}, small={"config.json"}) as hub:
        other.ok(gguf_model_convert_from=hub.repo, gguf_model_hf_endpoint=hub.endpoint, gguf_model_quantization="BF16")
        assert not [seen for seen in hub.seen if seen.path.endswith(".py")]
    assert other.names() == [".model.gguf.llama_cpp.json", "model.gguf"]
    assert text_of(release, other.path)
