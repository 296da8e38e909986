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
import sys
import tarfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from support.small_disk import small_disk
from support.stand_in_source import FAKE, MASTER, Run, archive, digest, member, said_of

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 600  # longer than this is a hang, however busy the machine is

PLAY = [
    {
        "hosts": "all",
        "gather_facts": False,
        "roles": ["llama_cpp.cluster.llama_cpp"],
    }
]


@dataclass
class Site:
    """A controller with a cache and a host with a prefix: all in one temporary folder."""

    folder: Path
    variables: dict[str, Any] = field(default_factory=dict)
    hosts: tuple[str, ...] = ("node",)

    def __post_init__(self) -> None:
        self.prefix = self.folder / "prefix"
        self.cache = self.folder / "cache"
        (self.folder / "play.yml").write_text(json.dumps(PLAY))

    def command(self, *options: str, **variables: Any) -> tuple[list[str], dict[str, str]]:
        merged = {
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            "llama_cpp_prefix": str(self.prefix),
            "llama_cpp_manage_packages": False,
            "llama_cpp_targets": ["rpc-server"],
            **self.variables,
            **variables,
        }
        # None means that the inventory sets the variable.
        given = {name: value for name, value in merged.items() if value is not None}
        (self.folder / "vars.json").write_text(json.dumps(given))
        environment = {
            **os.environ,
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_NOCOLOR": "1",
            "LLAMA_CPP_CLUSTER_CACHE": str(self.cache),
        }
        program = Path(sys.executable).with_name("ansible-playbook")
        hosts = ",".join(self.hosts) + ","
        return [
            str(program), "-i", hosts, "-e", f"@{self.folder}/vars.json", *options, f"{self.folder}/play.yml",
        ], environment  # fmt: skip

    def run(self, *options: str, path: str | None = None, **variables: Any) -> Run:
        argv, environment = self.command(*options, **variables)
        if path is not None:
            environment["PATH"] = path
        done = subprocess.run(
            argv,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        return Run(done.returncode, done.stdout)

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
        answer = subprocess.run(
            [self.current / "bin/rpc-server"], capture_output=True, text=True, timeout=10, check=False
        )
        return answer.returncode == 0 and "version: 0" in answer.stderr

    def tree(self) -> dict[str, bytes | None]:
        paths = self.folder.rglob("*")
        return {
            str(path): path.read_bytes() if path.is_file() else None
            for path in paths
            if path.name != "vars.json" and not path.is_symlink()
        }


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
    version = subprocess.run(
        [site.current / "bin/llama-cli", "--version"], capture_output=True, text=True, timeout=10, check=False
    )
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


def test_a_program_that_the_source_lacks_is_named(site: Site) -> None:
    run = site.run(llama_cpp_targets=["llama-cli"], llama_cpp_cmake_options={"LLAMA_BUILD_SERVER": False})
    assert run.code != 0
    assert run.holds("This source has no target llama-cli")


def test_a_failed_build_shows_why(site: Site) -> None:
    run = site.run(llama_cpp_cmake_options={"GGML_RPC": False})
    assert run.code != 0
    assert run.holds("not configured for RPC and Release", "configure.log")
    assert not site.current.is_symlink()


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
    "absolute path": member("/srv/evil"),
    "parent path": member("src/../../evil"),
    "symlink out": member("src/evil", tarfile.SYMTYPE, "/etc/passwd"),
    "hard link out": member("src/evil", tarfile.LNKTYPE, "../../etc/passwd"),
}


@pytest.mark.parametrize("evil", EVIL.values(), ids=EVIL.keys())
def test_an_archive_that_reaches_out_is_refused_before_it_is_pushed(tmp_path: Path, evil: tarfile.TarInfo) -> None:
    site = Site(tmp_path, archive(tmp_path / "source.tar.gz", evil))
    run = site.run()
    assert run.code != 0
    assert run.holds(f"is refused: its member {evil.name} leads out of its root")
    assert not site.prefix.exists()


@pytest.fixture
def repository(tmp_path: Path) -> tuple[Path, str]:
    """Return a git repository with two commits, and the id of the first one, which is wanted."""
    folder = tmp_path / "repository"
    shutil.copytree(FAKE, folder)

    def git(*words: str) -> str:
        who = ["-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "commit.gpgsign=false"]
        argv = ["git", "-C", str(folder), *who, *words]
        return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=20).stdout.strip()

    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "one")
    commit = git("rev-parse", "HEAD")
    (folder / "CMakeLists.txt").write_text("message(FATAL_ERROR not-this-commit)\n")
    git("commit", "-qam", "two")
    return folder, commit


@pytest.mark.long
@pytest.mark.parametrize("protocol", ["2.0.0", "3.6.1"])
def test_a_source_whose_protocol_tells_of_a_hole_is_not_built(
    tmp_path: Path, repository: tuple[Path, str], protocol: str
) -> None:
    folder, commit = repository
    numbers = zip(("MAJOR", "MINOR", "PATCH"), protocol.split("."))
    header = "".join(f"#define RPC_PROTO_{name}_VERSION {number}\n" for name, number in numbers)
    (folder / "ggml/include/ggml-rpc.h").write_text(header)
    git = ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "commit.gpgsign=false"]
    subprocess.run([*git, "checkout", "-q", commit, "--", "CMakeLists.txt"], check=True, timeout=20)
    subprocess.run([*git, "commit", "-qam", "old"], check=True, timeout=20)
    done = subprocess.run([*git, "rev-parse", "HEAD"], check=True, timeout=20, capture_output=True, text=True)
    commit = done.stdout.strip()
    source = {"llama_cpp_git_url": f"file://{folder}", "llama_cpp_commit": commit}
    site = Site(tmp_path, source)
    if protocol == "2.0.0":
        run = site.run()
        assert run.code != 0
        assert run.holds(f"llama.cpp git-{commit[:9]} has CVE-2026-34159", "take build b8492 or later, or set")
        assert not site.current.exists()
        assert not site.ok(llama_cpp_allow_vulnerable=True).holds("cannot be told")
    else:
        assert site.ok().holds(f"Warning: llama.cpp git-{commit[:9]} may have CVE-2026-34159", "b8492 or later")
    assert site.works()


REFUSED = {
    "known hole": (
        {"llama_cpp_archive": "https://mirror.example.com/tags/b8491.tar.gz"},
        "has CVE-2026-34159, with which anyone who reaches its RPC server can run code on the host: take build b8492",
    ),
    "short commit": (
        {"llama_cpp_archive": "", "llama_cpp_git_url": "x", "llama_cpp_commit": "abcdef0"},
        "give the full commit",
    ),
    "branch": (
        {"llama_cpp_archive": "", "llama_cpp_git_url": "x", "llama_cpp_commit": "master"},
        "give the full commit",
    ),
    "no digest": ({"llama_cpp_sha256": ""}, "SHA-256 digest, 64 hexadecimal digits"),
    "unknown version": ({"llama_cpp_archive": "", "llama_cpp_version": "9.9"}, "llama_cpp_version"),
    "two sources": ({"llama_cpp_git_url": "x"}, "name one source"),
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
    site = Site(folder, {"llama_cpp_prefix": None, "llama_cpp_targets": None})
    source = archive(folder / "source.tar.gz")
    hosts = {
        case.replace(" ", "_"): {
            "llama_cpp_prefix": str(site.prefix),
            "llama_cpp_targets": ["rpc-server"],
            **source,
            **variables,
        }
        for case, (variables, _words) in REFUSED.items()
    }
    (folder / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts}}))
    return site, site.run("-i", str(folder / "hosts.json"), "--forks", "4", "--limit", "!node")


@pytest.mark.parametrize(("case", "words"), [(case, bad[1]) for case, bad in REFUSED.items()], ids=REFUSED)
def test_a_bad_value_is_refused(bad_values: tuple[Site, Run], case: str, words: str) -> None:
    assert Run(1, said_of(case.replace(" ", "_"), bad_values[1].text)).holds(words)


def test_a_bad_value_is_refused_before_anything_changes(bad_values: tuple[Site, Run]) -> None:
    site, run = bad_values
    assert run.changed == 0
    assert not site.prefix.exists()
    assert not site.cache.exists()


@pytest.mark.parametrize("tool", ["ninja", "c++"])
def test_a_missing_tool_is_named(site: Site, tool: str) -> None:
    tools = site.folder / "tools"
    tools.mkdir()
    for folder in os.environ["PATH"].split(":"):
        for program in Path(folder).glob("*"):
            if program.name != tool and not (tools / program.name).is_symlink():
                (tools / program.name).symlink_to(program)
    run = site.run(path=str(tools))
    assert run.code != 0
    assert run.holds(f"node lacks {tool}, which the build needs", "llama_cpp_manage_packages")
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


@pytest.mark.long
@pytest.mark.parametrize("build_too", [True, False], ids=["host went down", "controller went away"])
def test_killed_during_the_build_current_works_and_the_next_run_finishes(site: Site, build_too: bool) -> None:
    site.ok()
    old = site.current.readlink()
    slow = {"FAKE_SLEEP": 3, "NEW": True}
    argv, environment = site.command(llama_cpp_cmake_options=slow)
    process = subprocess.Popen(
        argv, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.monotonic() + LIMIT_S
    while not list(site.prefix.glob("build/*/build.log")):
        assert process.poll() is None, "it ended before it built"
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(10)
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


@pytest.mark.parametrize("folder", [True, False], ids=["folder", "file"])
def test_what_stands_in_the_place_of_the_link_is_named_before_anything_is_built(site: Site, folder: bool) -> None:
    site.prefix.mkdir()
    if folder:
        site.current.mkdir()
    else:
        site.current.write_text("mine")
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


def test_a_build_that_takes_too_long_is_ended(site: Site) -> None:
    run = site.run(llama_cpp_cmake_options={"FAKE_SLEEP": 100}, llama_cpp_build_timeout=2)
    assert run.code != 0
    assert run.holds("was ended after 2 s", "build.log")
    assert builders(site) == []


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
