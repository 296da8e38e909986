# SPDX-License-Identifier: GPL-3.0-or-later
"""The role `llama_cpp`, run by a real ansible-playbook on this machine into a folder of its own.

The source is a stand-in with llama.cpp's targets (tests/support/fake_source), so that a build takes a second.
releases.yml shows that the role builds the real sources: it builds the programs of the other integration tests.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tarfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from support.harness import completed
from support.small_disk import small_disk
from support.stand_in_source import (
    FAKE,
    LIMIT_S,
    MASTER,
    Run,
    archive,
    digest,
    ended,
    member,
    run_on_hosts,
    said_of,
    started,
)

PLAY = [{"hosts": "all", "gather_facts": False, "roles": ["llama_cpp.cluster.llama_cpp"]}]


@dataclass
class Site:
    """A controller with a cache and a host with a prefix: all in one temporary folder."""

    folder: Path
    variables: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.prefix = self.folder / "prefix"
        self.cache = self.folder / "cache"
        (self.folder / "play.yml").write_text(json.dumps(PLAY))

    def start(self, *options: str, path: str | None = None, **variables: Any) -> subprocess.Popen[str]:
        merged = {
            "llama_cpp_prefix": str(self.prefix),
            "llama_cpp_manage_packages": False,
            "llama_cpp_targets": ["rpc-server"],
            **self.variables,
            **variables,
        }
        environment = {"LLAMA_CPP_CLUSTER_CACHE": str(self.cache), "PATH": path or os.environ["PATH"]}
        return started(self.folder, merged, *options, **environment)

    def run(self, *options: str, **variables: Any) -> Run:
        return ended(self.start(*options, **variables))

    def on_hosts(self, hosts: dict[str, dict[str, Any]]) -> Run:
        """Run the role once, with a host for each case."""
        given = {"llama_cpp_prefix": f"{self.prefix}/{{{{ inventory_hostname }}}}", "llama_cpp_targets": ["rpc-server"]}
        hosts = {name: {**given, **variables} for name, variables in hosts.items()}
        return run_on_hosts(
            self.folder, hosts, {"llama_cpp_manage_packages": False}, LLAMA_CPP_CLUSTER_CACHE=str(self.cache)
        )

    def ok(self, *options: str, **variables: Any) -> Run:
        run = self.run(*options, **variables)
        assert run.code == 0, run.text
        return run

    @property
    def current(self) -> Path:
        return self.prefix / "current"

    @property
    def manifest(self) -> dict[str, Any]:
        manifest: dict[str, Any] = json.loads((self.current / "manifest.json").read_text())
        return manifest

    @property
    def programs(self) -> list[str]:
        return sorted(path.name for path in (self.current / "bin").iterdir())

    def releases(self) -> set[str]:
        return {path.name for path in (self.prefix / "releases").iterdir()}

    def works(self) -> bool:
        answer = completed(self.current / "bin/rpc-server")
        return answer.returncode == 0 and "version: 0" in answer.stderr

    def tree(self) -> dict[str, bytes | None]:
        paths = self.folder.rglob("*")
        return {str(path): path.read_bytes() if path.is_file() else None for path in paths if not path.is_symlink()}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path, archive(tmp_path / "source.tar.gz"))


@pytest.mark.long
def test_a_host_for_both_gets_every_program_and_a_second_run_changes_nothing(site: Site) -> None:
    site.ok(llama_cpp_targets=["rpc-server", *MASTER])
    assert site.programs == [*MASTER, "rpc-server"]
    assert site.works()
    assert site.manifest["rpc_protocol"] == "7.0.0"
    assert site.manifest["patches"] == []
    assert site.manifest["source"]["sha256"] == site.variables["llama_cpp_sha256"]
    assert site.manifest["programs"] == site.programs
    assert site.manifest["id"] == site.current.resolve().name
    version = completed(site.current / "bin/llama-cli", "--version")
    assert "abcdef012" in version.stderr, "a build names the commit that it was pinned to"
    share = site.current / "share/llama.cpp"
    assert sorted(str(path.relative_to(share)) for path in share.rglob("*.py")) == [
        "convert_hf_to_gguf.py",
        "gguf-py/gguf/__init__.py",
    ], "what converts models is there with llama-quantize"
    assert not (site.prefix / "build").exists(), "what was only needed to build is gone"
    before = site.tree()
    second = site.ok(llama_cpp_targets=["rpc-server", *MASTER])
    assert second.changed == 0
    assert site.tree() == before


@pytest.mark.long
def test_a_build_as_root_is_cut_off_from_the_network(site: Site) -> None:
    site.ok(llama_cpp_cmake_options={"FAKE_OFFLINE": True})
    assert site.works()


@pytest.mark.parametrize("cached", [False, True], ids=["empty cache", "source in the cache"])
def test_check_mode_on_a_clean_host_says_what_it_would_do_and_changes_nothing(site: Site, cached: bool) -> None:
    if not cached:
        # The source would have to be fetched first.
        site.variables["llama_cpp_archive"] = f"file://{site.folder}/source.tar.gz"
    before = site.tree()
    run = site.ok("--check", "--diff")
    assert run.holds("would be built with rpc-server")
    assert run.changed > 0
    assert site.tree() == before
    assert not site.current.is_symlink()


@pytest.mark.long
def test_an_archive_by_url_is_fetched_once_and_a_damaged_one_again(site: Site) -> None:
    site.variables["llama_cpp_archive"] = f"file://{site.folder}/source.tar.gz"
    site.ok()
    cached = site.cache / "sources" / f"archive-{site.variables['llama_cpp_sha256']}"
    cached.write_bytes(b"damaged")

    def forget() -> None:
        for folder in (site.prefix, site.cache / "artifacts"):
            shutil.rmtree(folder)

    forget()
    site.ok()
    assert digest(cached) == site.variables["llama_cpp_sha256"]
    (site.folder / "source.tar.gz").unlink()
    forget()
    site.ok()


@pytest.mark.parametrize("url", [False, True], ids=["path", "url"])
def test_a_wrong_digest_stops_before_anything_is_unpacked(site: Site, url: bool) -> None:
    right = site.variables["llama_cpp_sha256"]
    if url:
        site.variables["llama_cpp_archive"] = f"file://{site.folder}/source.tar.gz"
    run = site.run(llama_cpp_sha256="0" * 64)
    assert run.code != 0
    assert run.holds(right, "0" * 64)
    assert not site.prefix.exists()


EVIL = {
    "absolute": member("/srv/evil"),
    "parent": member("src/../../evil"),
    "symlink": member("src/evil", tarfile.SYMTYPE, "/etc/passwd"),
    "hard_link": member("src/evil", tarfile.LNKTYPE, "../../etc/passwd"),
}


def test_an_archive_that_reaches_out_is_refused_before_it_is_pushed(tmp_path: Path) -> None:
    site = Site(tmp_path)
    run = site.on_hosts({name: archive(tmp_path / f"{name}.tar.gz", evil) for name, evil in EVIL.items()})
    for name, evil in EVIL.items():
        said = Run(1, said_of(name, run.text))
        assert said.holds(f"is refused: its member {evil.name} leads out of its root"), run.text
    assert not site.prefix.exists()


@pytest.mark.long
@pytest.mark.parametrize("protocol", ["2.0.0", "3.6.1"])
def test_a_source_whose_protocol_tells_of_a_hole_is_not_built(tmp_path: Path, protocol: str) -> None:
    numbers = zip(("MAJOR", "MINOR", "PATCH"), protocol.split("."))
    header = "".join(f"#define RPC_PROTO_{name}_VERSION {number}\n" for name, number in numbers)
    shutil.copytree(FAKE, tmp_path / "src")
    (tmp_path / "src/ggml/include/ggml-rpc.h").write_text(header)
    source = archive(tmp_path / "source.tar.gz")
    with tarfile.open(tmp_path / "source.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "src", "src")
    site = Site(tmp_path, {**source, "llama_cpp_sha256": digest(tmp_path / "source.tar.gz")})
    if protocol == "2.0.0":
        run = site.run()
        assert run.code != 0
        assert run.holds("llama.cpp archive-abcdef012 has CVE-2026-34159", "take build b8492 or later, or set")
        assert not site.current.exists()
        assert not site.ok(llama_cpp_allow_vulnerable=True).holds("cannot be told")
    else:
        run = site.ok()
        assert run.holds("Warning: llama.cpp archive-abcdef012 may have CVE-2026-34159", "b8492 or later")
        assert run.holds("archive-abcdef012 gets no patches, not rpc-repack, rpc-load, rpc-safety, programs: it speaks")
        assert run.holds("Warning: llama.cpp archive-abcdef012 is built without the patch rpc-safety, so whoever")
    assert site.works()


REFUSED = {
    "known hole": (
        {"llama_cpp_archive": "https://mirror.example.com/tags/b8491.tar.gz"},
        "has CVE-2026-34159, with which anyone who reaches its RPC server can run code on the host: take build b8492",
    ),
    "trusts its clients": (
        {"llama_cpp_require_safety": True},
        "is built without the patch rpc-safety, so whoever reaches its RPC server can run code on the host",
    ),
    "branch": ({"llama_cpp_commit": "master"}, "give a commit of 7 to 40 hexadecimal digits"),
    "no digest": ({"llama_cpp_sha256": ""}, "SHA-256 digest, 64 hexadecimal digits"),
    "unknown version": (
        {"llama_cpp_archive": "", "llama_cpp_version": "9.9"},
        'llama_cpp_version is "9.9": take one of 0.3.31, 0.3.34,',
    ),
    "build that does not exist": (
        {"llama_cpp_archive": "", "llama_cpp_version": "b11548"},
        "llama_cpp_version is b11548, whose source was not found: the package xllamacpp has b",
    ),
    "build without its digest": (
        {"llama_cpp_archive": "", "llama_cpp_sha256": "", "llama_cpp_version": "b11063"},
        'llama_cpp_sha256 is "": give the SHA-256 digest of xllamacpp-2026.9.11063.tar.gz',
    ),
    "a word for patches": ({"llama_cpp_patches": "core"}, "and llama_cpp_patches a list or auto"),
    "relative prefix": ({"llama_cpp_prefix": "opt"}, "give an absolute path"),
    "no release to keep": ({"llama_cpp_keep_releases": 0}, "give 1 or more"),
    "option with -D": ({"llama_cpp_cmake_options": {"-DX": 1}}, "write GGML_OPENMP"),
    "options as text": ({"llama_cpp_cmake_options": '{"GGML_OPENMP": false}'}, "give them as JSON"),
    "targets as text": ({"llama_cpp_targets": "rpc-server"}, "give them as JSON"),
    "a word for a number": ({"llama_cpp_build_jobs": "many"}, "llama_cpp_build_jobs"),
}


@pytest.fixture(scope="module")
def bad_values(tmp_path_factory: pytest.TempPathFactory) -> tuple[Site, Run]:
    """Run all bad values in one play, each as a host of its own; return the site and the run."""
    folder = tmp_path_factory.mktemp("bad")
    site = Site(folder)
    source = archive(folder / "source.tar.gz")
    return site, site.on_hosts(
        {case.replace(" ", "_"): {**source, **variables} for case, (variables, _words) in REFUSED.items()}
    )


@pytest.mark.parametrize(("case", "words"), [(case, bad[1]) for case, bad in REFUSED.items()], ids=REFUSED)
def test_a_bad_value_is_refused(bad_values: tuple[Site, Run], case: str, words: str) -> None:
    assert Run(1, said_of(case.replace(" ", "_"), bad_values[1].text)).holds(words)


def test_a_bad_value_is_refused_before_anything_changes(bad_values: tuple[Site, Run]) -> None:
    site, run = bad_values
    assert run.changed == 0
    assert not site.prefix.exists()
    assert not site.cache.exists()


def test_a_missing_tool_is_named(site: Site) -> None:
    tools = site.folder / "tools"
    tools.mkdir()
    for folder in os.environ["PATH"].split(":"):
        for program in Path(folder).glob("*"):
            if program.name != "ninja" and not (tools / program.name).is_symlink():
                (tools / program.name).symlink_to(program)
    run = site.run(path=str(tools))
    assert run.code != 0
    assert run.holds("node lacks ninja, which the build needs", "llama_cpp_manage_packages")
    assert not site.prefix.exists()


def builders(site: Site) -> list[int]:
    """Return the ids of the processes that build in this site's folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            here = (process / "cwd").readlink()
        except OSError:
            continue
        if site.prefix in here.parents:
            found.append(int(process.name))
    return found


def test_a_build_that_fails_is_explained(site: Site) -> None:
    cases: dict[str, tuple[dict[str, Any], list[str]]] = {
        "lacking": (
            {"llama_cpp_targets": ["llama-cli"], "llama_cpp_cmake_options": {"LLAMA_BUILD_SERVER": False}},
            ["This source has no target llama-cli"],
        ),
        "other": (
            {"llama_cpp_cmake_options": {"GGML_RPC": False}},
            ["not configured for RPC and Release", "configure.log"],
        ),
    }
    run = site.on_hosts({name: {**site.variables, **variables} for name, (variables, _words) in cases.items()})
    for name, (_variables, words) in cases.items():
        assert Run(1, said_of(name, run.text)).holds(*words), run.text
        assert not (site.prefix / name / "current").is_symlink()
    assert builders(site) == []


@pytest.mark.long
@pytest.mark.parametrize("build_too", [True, False], ids=["host went down", "controller went away"])
def test_killed_during_the_build_current_works_and_the_next_run_finishes(site: Site, build_too: bool) -> None:
    site.ok()
    old = site.current.readlink()
    slow = {"FAKE_SLEEP": 3, "NEW": True}
    process = site.start(llama_cpp_cmake_options=slow)
    deadline = time.monotonic() + LIMIT_S
    while not list(site.prefix.glob("build/*/build.log")):
        assert process.poll() is None, "it ended before it built"
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=10)
    if build_too:
        for pid in builders(site):
            # Killing one process may end others.
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert site.current.readlink() == old
    assert site.works()
    site.ok(llama_cpp_cmake_options=slow)
    assert site.current.readlink() != old
    assert site.works()
    assert len(site.releases()) == 2


@pytest.mark.long
def test_what_a_kill_during_the_installation_left_is_no_hindrance(site: Site) -> None:
    site.ok()
    name = site.current.resolve().name
    (site.prefix / "releases" / name / "manifest.json").unlink()
    (site.prefix / "releases" / f".{name}" / "bin").mkdir(parents=True)
    (site.prefix / "releases" / ".another" / "bin").mkdir(parents=True)
    site.ok()
    assert site.works()
    assert site.releases() == {name}
    assert site.ok().changed == 0


def test_what_stands_in_the_place_of_the_link_is_named_before_anything_is_built(site: Site) -> None:
    site.current.mkdir(parents=True)
    before = site.tree()
    for options in ([], ["--check"]):
        run = site.run(*options)
        assert run.code != 0
        assert run.holds(f"{site.current} on node is not the link", "move it away")
        assert run.changed == 0
        assert site.tree() == before


@pytest.mark.long
def test_a_build_that_is_kept_goes_on_with_other_programs(site: Site) -> None:
    def make(*programs: str, keep: bool) -> None:
        options = {"LLAMA_BUILD_SERVER": True}
        site.ok(llama_cpp_targets=["rpc-server", *programs], llama_cpp_keep_build=keep, llama_cpp_cmake_options=options)

    make("llama-completion", keep=True)
    (log,) = site.prefix.glob("build/*/build.log")
    assert "lib.cpp" in log.read_text()
    make("llama-server", keep=True)
    assert list(site.prefix.glob("build/*/build.log")) == [log]
    assert "lib.cpp" not in log.read_text()
    assert "llama-server" in log.read_text()
    assert len(site.releases()) == 2
    make("llama-bench", keep=False)
    assert not log.parent.exists()


@pytest.mark.long
def test_old_releases_go_and_an_older_one_comes_back_by_relinking(site: Site) -> None:
    def use(number: int) -> str:
        site.ok(llama_cpp_keep_releases=2, llama_cpp_cmake_options={"NUMBER": number})
        return site.current.resolve().name

    first, second = use(1), use(2)
    assert site.releases() == {first, second}
    inode = (site.prefix / "releases" / first).stat().st_ino
    assert use(1) == first
    assert (site.prefix / "releases" / first).stat().st_ino == inode, "it was there, and only the link moved"
    third = use(3)
    assert site.releases() == {second, third}, "the one that was made first is the oldest"
    for age in range(6):
        made = site.prefix / f"releases/made-{age}"
        made.mkdir()
        os.utime(made, (1_700_000_000 - age,) * 2)
    site.ok(llama_cpp_keep_releases=5, llama_cpp_cmake_options={"NUMBER": 3})
    assert site.releases() == {third, second, "made-0", "made-1", "made-2"}
    site.ok(llama_cpp_keep_releases=1, llama_cpp_cmake_options={"NUMBER": 3})
    assert site.releases() == {third}, "the current one always stays"
    assert site.works()


def test_a_full_disk_is_said_and_leaves_the_current_release(tmp_path: Path) -> None:
    site = Site(tmp_path, archive(tmp_path / "source.tar.gz"))
    with small_disk(site.prefix, "size=8m"):
        site.ok()
        old = site.current.readlink()
        big = archive(tmp_path / "big.tar.gz", member("src/big", size=20_000_000))
        run = site.run(**big)
        assert run.code != 0
        assert run.holds("the disk that holds", "is full"), run.text
        assert site.current.readlink() == old
        assert site.works()


def test_a_full_disk_under_the_cache_is_said_and_nothing_is_kept(tmp_path: Path) -> None:
    source = archive(tmp_path / "source.tar.gz")
    (tmp_path / "source.tar.gz").write_bytes(os.urandom(20_000_000))
    source["llama_cpp_archive"] = f"file://{tmp_path}/source.tar.gz"
    source["llama_cpp_sha256"] = digest(tmp_path / "source.tar.gz")
    site = Site(tmp_path, source)
    with small_disk(site.cache, "size=8m"):
        run = site.run()
        assert run.code != 0
        assert run.holds(f"the disk that holds {site.cache}/sources is full"), run.text
        assert list((site.cache / "sources").iterdir()) == []
        assert not site.prefix.exists()


def test_a_build_that_takes_too_long_is_ended(site: Site) -> None:
    run = site.run(llama_cpp_cmake_options={"FAKE_SLEEP": 100}, __llama_cpp_build_timeout=2)
    assert run.code != 0
    assert run.holds("was ended after 2 s", "build.log")
    assert builders(site) == []
