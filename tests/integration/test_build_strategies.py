# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the role `llama_cpp` builds: once for each class of CPUs, on another host, or nowhere.

The tests run the real ansible-playbook over hosts that are folders of this machine. A run takes seconds, so one run has
many hosts, and each host is a case of its own.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import tarfile
import time
from pathlib import Path

import pytest
from ansible.plugins.connection import local

from integration.fleet import Fleet
from support.harness import ROOT
from support.other_machine import NEOVERSE_N1, masquerade
from support.small_disk import small_disk
from support.stand_in_source import LIMIT_S, MASTER, archive, digest, ended, member

CROSS = "aarch64-linux-gnu-g++"

# A connection plugin for hosts that may go down.
FRAGILE = f"""
from pathlib import Path
from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.connection.local import Connection as Local
DOCUMENTATION = {local.DOCUMENTATION.replace("name: local", "name: fragile")!r}
class Connection(Local):
    def exec_command(self, *args, **options):
        if Path("FOLDER", self._play_context.remote_addr, "is-down").exists():
            raise AnsibleConnectionFailure("no route to host")
        return super().exec_command(*args, **options)
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    options = {
        "FAKE_LOG": str(tmp_path / "builds.log"),
        "FAKE_FAILS": f"^{tmp_path}/broken",
        "FAKE_LOSES": f"^{tmp_path}/lost",
    }
    (tmp_path / "fragile.py").write_text(FRAGILE.replace("FOLDER", str(tmp_path)))
    return Fleet(tmp_path, archive(tmp_path / "source.tar.gz", llama_cpp_cmake_options=options))


@pytest.mark.long
def test_a_class_is_built_for_once(fleet: Fleet) -> None:
    """Three hosts are alike. Of three others, two cannot build, and another host builds for them."""
    alike = ("one", "two", "master")
    fleet.hosts = {
        **{name: {} for name in alike},
        "broken5": {"llama_cpp_cpu_features": ["sse42"], "llama_cpp_builder": "six"},
        "six": {"llama_cpp_cpu_features": ["sse42"]},
        "broken7": {"llama_cpp_cpu_features": ["avx"], "llama_cpp_builder": "six"},
    }

    run = fleet.run("one", "two", "master", options=("--check",))
    assert run.code == 0, run.text
    assert run.holds("rpc-server on one for the class x86_64-", "(one, two, master)."), run.text
    assert run.text.count("would be unpacked here") == 2
    assert not fleet.cache.exists()
    assert not (fleet.folder / "one").exists()

    run = fleet.run(*fleet.hosts)
    assert run.code == 0, run.text
    assert sorted(fleet.builds()) == ["one", "six", "six"], run.text
    workers = [fleet.programs(host) for host in alike if host != "master"]
    assert workers[0].keys() == {"rpc-server"}
    assert all(programs == workers[0] for programs in workers)
    assert sorted(fleet.programs("master")) == MASTER
    assert fleet.release("broken5") == fleet.release("six") != fleet.release("one")
    made = fleet.artifacts()
    assert len(made) == 4, "one for the workers and one for the master of a class, and one for each other class"
    manifest = fleet.record("six")["manifest"]
    assert manifest["cpu_class"]["features"] == ["sse4_2"]
    assert manifest["cmake_options"]["GGML_AVX2"] is False
    assert manifest["cmake_options"]["GGML_NATIVE"] is False
    assert [fleet.record(host)["built_by"] for host in ("one", "broken5", "broken7")] == ["one", "six", "six"]
    assert not (fleet.current("master") / "libexec/rpc-cache").exists(), "what is for a worker's cache is on workers"
    own = [fleet.current("one") / name for name in ("bin/rpc-server", "libexec/rpc-cache")]
    needs = subprocess.run(["readelf", "--dynamic", *own], capture_output=True, text=True, check=True).stdout
    assert "libc.so" in needs
    assert "libstdc++" not in needs
    assert "libgcc" not in needs
    said = subprocess.run([fleet.current("one") / "bin/rpc-server"], capture_output=True, text=True, check=True).stderr
    assert "built from ./source/main.cpp" in said, "no path of the builder is in it"

    again = fleet.run("one", "master", "six")
    assert again.code == 0, again.text
    assert again.changed == 0

    # Damage two artifacts. One lacks a piece. The other lacks its record, as if a run had been killed before it wrote
    # it. Now another host builds, in another folder.
    damaged = [fleet.cache / "artifacts" / f"{fleet.release(host)}.tar.gz" for host in ("two", "master")]
    damaged[0].write_bytes(damaged[0].read_bytes()[:1000])
    damaged[1].with_name(damaged[1].name.replace(".tar.gz", ".json")).unlink()
    half = fleet.cache / "artifacts" / f".{fleet.release('master')}.0123456789ab.part"
    half.write_bytes(b"half")
    long_ago = [fleet.cache / "artifacts" / f"{fleet.release('six')}{end}" for end in (".tar.gz", ".json")]
    never_used = [fleet.cache / "artifacts" / f"unused{end}" for end in (".tar.gz", ".json")]
    for path in never_used:
        path.touch()
    for path in [half, *long_ago, *never_used]:
        os.utime(path, (time.time() - 91 * 86400,) * 2)
    # A killed build of another release has left files on host two, which also has the tools of BusyBox. The disk of
    # host full has enough room, but not enough inodes.
    left = fleet.folder / "two" / "build" / "another" / "tree"
    fleet.hosts["two"]["ansible_python_interpreter"] = masquerade(fleet.folder / "busybox")
    fleet.hosts["full"] = {}
    for host in ("two", "master", "six"):
        shutil.rmtree(fleet.folder / host)
    left.mkdir(parents=True)
    with small_disk(fleet.folder / "full", "size=20m,nr_inodes=11"):
        fleet.has_an_older_release("full")
        run = fleet.run("two", "master", "six", "full")
        fleet.failed(run, "full", f"The disk that holds {fleet.folder}/full/releases on full is full: make room")
        assert fleet.is_as_it_was("full")
    assert run.text.count("failed=0") == 3, run.text
    assert not (fleet.folder / "two" / "build").exists()
    assert all(path.exists() for path in long_ago), "a use renews it"
    assert not any(path.exists() for path in never_used)
    assert len(fleet.builds()) == 1, "the artifact of six is in the cache, so it builds nothing"
    assert fleet.artifacts() == made, "the same inputs give the same bytes, wherever they are built"
    assert fleet.programs("two") == fleet.programs("one")
    assert not list((fleet.cache / "artifacts").glob(".*"))


def packed(path: Path, files: dict[str, bytes], *more: tarfile.TarInfo) -> Path:
    """Write an archive of executable files."""
    with tarfile.open(path, "w:xz" if path.suffix == ".xz" else "w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o755
            tar.addfile(info, io.BytesIO(content))
        for info in more:
            tar.addfile(info)
    return path


def compiled(folder: Path) -> dict[str, bytes]:
    """Return programs and a library as in upstream's archives: in one folder, where programs find the library."""
    (folder / "lib.c").write_text("int answer(void) { return 0; }\n")
    (folder / "main.c").write_text("int answer(void);\nint main(void) { return answer(); }\n")
    (folder / "alone.c").write_text("int main(void) { return 0; }\n")
    build = ["cc", "-o"]
    for argv in (
        [*build, "libanswer.so", "-shared", "lib.c"],
        [*build, "server", "main.c", "-L.", "-lanswer", "-Wl,-rpath,$ORIGIN"],
        [*build, "alone", "alone.c"],
    ):
        subprocess.run(argv, cwd=folder, check=True, timeout=300)
    server = (folder / "server").read_bytes()
    return {
        "llama-b1/libanswer.so": (folder / "libanswer.so").read_bytes(),
        "llama-b1/rpc-server": server,
        **{f"llama-b1/{name}": server for name in [*MASTER, "llama-results"]},
        "alone": (folder / "alone").read_bytes(),
    }


@pytest.mark.long
def test_an_artifact_is_installed_where_it_runs(fleet: Fleet) -> None:
    """Each host is given another artifact."""
    files = compiled(fleet.folder)
    alone = files.pop("alone")
    foreign = bytearray(alone)
    foreign[18:20] = (183).to_bytes(2, "little")  # EM_AARCH64 (elf.h)
    upstream = packed(fleet.folder / "upstream.tar.gz", files)
    good = packed(fleet.folder / "upstream.tar.xz", files)
    whole = packed(fleet.folder / "alone.tar.gz", {"x/rpc-server": alone})
    half = fleet.folder / "half.tar.gz"
    half.write_bytes(whole.read_bytes()[:-40])
    full = {"x/rpc-server": alone + os.urandom(6_000_000)}
    manifests = {
        name: {"rpc-server": alone, "manifest.json": text} for name, text in (("text", b"hm"), ("list", b"[]"))
    }

    def gives(path: Path, sha256: str = "") -> dict[str, str]:
        return {"llama_cpp_artifact": str(path), "llama_cpp_sha256": sha256 or digest(path)}

    fleet.hosts = {
        "worker": {
            "llama_cpp_artifact": "http://user:password@127.0.0.1/llama.tar.xz?signature=5ecret",
            "llama_cpp_sha256": digest(good),
        },
        "worker2": {**gives(good), "llama_cpp_targets": ["rpc-server"]},
        "master": gives(upstream),
        "asked": {**gives(good), "llama_cpp_targets": ["llama-results"]},
        "wrong": gives(whole, "0" * 64),
        "half": gives(half),
        "evil": gives(packed(fleet.folder / "evil.tar.gz", {"rpc-server": alone}, member("../evil"))),
        "foreign": gives(packed(fleet.folder / "foreign.tar.gz", {"x/rpc-server": bytes(foreign)})),
        "lonely": gives(packed(fleet.folder / "lonely.tar.gz", {"x/rpc-server": files["llama-b1/rpc-server"]})),
        "empty": gives(packed(fleet.folder / "empty.tar.gz", {"x/other": alone})),
        "full": gives(packed(fleet.folder / "full.tar.gz", full)),
        **{name: gives(packed(fleet.folder / f"{name}.tar.gz", held)) for name, held in manifests.items()},
    }
    sources = fleet.cache / "sources"
    sources.mkdir(parents=True)
    shutil.copy(good, sources / f"artifact-{digest(good)}")
    bad = list(fleet.hosts)[4:]
    with small_disk(fleet.folder / "full", "size=9m"):
        for host in bad:
            fleet.has_an_older_release(host)
        run = fleet.run(*fleet.hosts)
        fleet.failed(run, "wrong", digest(whole), "but 000000")
        fleet.failed(run, "half", "half.tar.gz is not a whole archive")
        fleet.failed(run, "evil", "is refused: its member ../evil leads out of its root")
        fleet.failed(run, "foreign", "is built for another kind of machine than this one (x86_64)")
        fleet.failed(run, "lonely", "libanswer.so")
        fleet.failed(run, "empty", f"the artifact {fleet.folder}/empty.tar.gz has no rpc-server")
        fleet.failed(run, "full", f"The disk that holds {fleet.folder}/full/releases on full is full", "make room")
        for name in manifests:
            fleet.failed(run, name, f"the manifest.json at the root of the artifact {fleet.folder}/{name}.tar.gz is no")
        for host in bad:
            assert fleet.is_as_it_was(host), host
    assert run.text.count("failed=0") == 4, run.text
    assert fleet.release("worker2") == fleet.release("worker")
    assert sorted(fleet.programs("worker")) == ["libanswer.so", "rpc-server"]
    assert sorted(fleet.programs("master")) == ["libanswer.so", *MASTER]
    assert sorted(fleet.programs("asked")) == ["libanswer.so", "llama-results"]
    manifest = json.loads((fleet.current("worker") / "manifest.json").read_text())
    assert manifest["artifact"] == {"name": "http://127.0.0.1/llama.tar.xz", "sha256": digest(good)}
    assert manifest["source"]["name"] == "http://127.0.0.1/llama.tar.xz"
    for secret in ("password", "5ecret"):
        assert secret not in run.text
    assert manifest["source"]["commit"] == "abcdef0123"
    assert manifest["id"] == fleet.release("worker")
    assert not (fleet.cache / "build").exists() or not list((fleet.cache / "build").glob("*/rpc-server"))
    again = fleet.run("worker", "master")
    assert again.code == 0, again.text
    assert again.changed == 0


@pytest.mark.long
def test_a_builder_that_cannot_go_on_is_named_to_its_class_and_holds_up_no_other(fleet: Fleet) -> None:
    """On one host a folder is in the way. On one the build fills the disk. One goes down."""
    fleet.hosts = {
        **{name: {"llama_cpp_builder": "localhost"} for name in ("blocked", "next")},
        **{name: {"llama_cpp_cpu_features": ["sse42"]} for name in ("full", "six")},
        **{name: {"llama_cpp_cpu_features": ["avx"], "ansible_connection": "fragile"} for name in ("lost", "nine")},
    }
    (fleet.folder / "blocked" / "current").mkdir(parents=True)
    with small_disk(fleet.folder / "full", "size=2m"):
        run = fleet.run(*fleet.hosts)
        fleet.failed(run, "full", "its disk is full")
    fleet.failed(run, "blocked", "is not the link that this role keeps there")
    fleet.failed(run, "six", "full has failed, which builds for six too", "leave full out (--limit)")
    fleet.failed(run, "nine", "lost has failed, which builds for nine too", "llama_cpp_builder names another builder")
    assert re.search(r"^lost .*unreachable=1", run.text, re.MULTILINE), run.text
    assert fleet.builds() == ["cache"]
    assert fleet.release("next") in {name.replace(".tar.gz", "") for name in fleet.artifacts()}
    assert {path.name for path in (fleet.folder / "six").glob("*")} <= {"build"}
    run = fleet.run("six", "nine")
    assert run.code == 0, run.text


@pytest.mark.long
def test_two_runs_share_a_builder_and_a_killed_one_is_continued(fleet: Fleet) -> None:
    """One controller is killed while its builder builds. Then two more runs want the same build."""
    fleet.hosts = {name: {"llama_cpp_builder": "builder"} for name in ("first", "second", "third")}
    fleet.hosts["builder"] = {}
    fleet.variables["llama_cpp_cmake_options"]["FAKE_SLEEP"] = 4
    # The builder needs no release for itself, and already uses the release of another play.
    fleet.has_an_older_release("builder")
    options = ("--limit", "!builder")
    killed = fleet.start("first", "builder", options=options)
    deadline = time.monotonic() + LIMIT_S
    while not list(fleet.folder.glob("builder/build/*/build.log")):
        assert killed.poll() is None, ended(killed).text
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.killpg(killed.pid, signal.SIGKILL)
    ended(killed)
    assert not fleet.current("first").exists()
    both = [fleet.start(name, "builder", options=options) for name in ("second", "third")]
    runs = [ended(process) for process in both]
    for run in runs:
        assert run.code == 0, run.text
    assert fleet.programs("second") == fleet.programs("third")
    assert fleet.builds() == ["builder"] * 2, "what the killed run had begun, and one for the two others"
    assert fleet.is_as_it_was("builder")


@pytest.mark.long
def test_what_cannot_be_built_is_refused_before_anything_changes(fleet: Fleet) -> None:
    """Each host is refused for another reason."""
    arm = masquerade(fleet.folder / "arm", "glibc 2.41", NEOVERSE_N1, "aarch64")
    old = masquerade(fleet.folder / "old", "glibc 2.17")
    fleet.hosts = {
        "feature": {"llama_cpp_cpu_features": ["sve2"]},
        "builder": {"llama_cpp_builder": "nobody"},
        "both": {"llama_cpp_cpu_features": ["portable", "sse42"]},
        "digest": {"llama_cpp_artifact": "x", "llama_cpp_sha256": ""},
        # A compiler for x86-64 knows none of Arm's -march values, just as an old compiler for Arm would not know this
        # one.
        "march": {"ansible_python_interpreter": arm},
        "march2": {"ansible_python_interpreter": arm},
        "portable": {"ansible_python_interpreter": arm, "llama_cpp_cpu_features": ["portable"]},
        "libc": {"ansible_python_interpreter": old, "llama_cpp_builder": "feature"},
        "bits": {"ansible_python_interpreter": masquerade(fleet.folder / "bits-look", machine="aarch64", bits="32")},
        "old-arm": {"ansible_python_interpreter": masquerade(fleet.folder / "arm-look", machine="armv7l", bits=" ")},
    }
    for host in fleet.hosts:
        fleet.has_an_older_release(host)
    run = fleet.run(*fleet.hosts)
    assert run.code != 0
    fleet.failed(
        run,
        "feature",
        "llama_cpp_cpu_features of feature: the CPU (x86_64) lacks sve2: leave it out of the features to build for.",
    )
    fleet.failed(run, "builder", 'llama_cpp_builder is "nobody", which is not a host of the inventory')
    fleet.failed(run, "both", "portable: no such CPU feature", "portable by itself is for a build of all variants")
    fleet.failed(run, "digest", "give the artifact's SHA-256 digest")
    fleet.failed(
        run, "march", "c++",
        "on march does not know -march=armv8.2-a+dotprod+fp16, which the class aarch64-dotprod-fp16-glibc2.41 needs:",
        "name a host with a newer compiler in llama_cpp_builder, or leave the feature out",
    )  # fmt: skip
    fleet.failed(run, "march2", "march has failed, which builds for march2 too: see its message")
    fleet.failed(run, "portable", "which a portable build for aarch64 (GCC 14 or newer) needs")
    fleet.failed(run, "libc", "and the class x86_64-", "has glibc 2.17, which is older")
    fleet.failed(
        run, "bits", "bits runs a 32-bit system (aarch64), for which this role builds nothing: install a 64-bit"
    )
    fleet.failed(run, "old-arm", "old-arm runs a 32-bit system (armv7l)")
    assert fleet.builds() == []
    for host in fleet.hosts:
        assert fleet.is_as_it_was(host), host


def machine_of(artifact: Path) -> int:
    """Return the machine that an artifact's server is for, as the number of the ELF format."""
    with tarfile.open(artifact) as tar:
        return int.from_bytes(tar.extractfile("./bin/rpc-server").read(20)[18:], "little")  # type: ignore[union-attr]


@pytest.mark.long
@pytest.mark.skipif(shutil.which(CROSS) is None, reason=f"no {CROSS} here")
def test_the_controller_cross_builds_for_another_machine(fleet: Fleet) -> None:
    arm = masquerade(fleet.folder / "looks", "glibc 2.41", NEOVERSE_N1, "aarch64")
    old = masquerade(fleet.folder / "old", "glibc 2.17", NEOVERSE_N1, "aarch64")
    fleet.variables["llama_cpp_builder"] = "localhost"
    fleet.hosts = {"arm": {"ansible_python_interpreter": arm}, "old": {"ansible_python_interpreter": old}, "native": {}}
    kept = fleet.folder / "kept"
    run = fleet.run(*fleet.hosts, playbook=ROOT / "playbooks" / "build.yml", llama_cpp_artifact_folder=str(kept))
    assert run.holds("aarch64-dotprod-fp16-glibc2.41")
    assert run.holds("localhost builds for glibc", "has glibc 2.17, which is older"), run.text
    artifact, native = sorted(kept.iterdir(), key=machine_of, reverse=True)
    assert run.holds(f"llama_cpp_artifact: {artifact}", f"llama_cpp_sha256: {digest(artifact)}"), run.text
    with tarfile.open(artifact) as tar:
        manifest = json.load(tar.extractfile("./manifest.json"))  # type: ignore[arg-type]
    assert (machine_of(artifact), machine_of(native)) == (183, 62)
    assert manifest["cpu_class"]["march"] == "armv8.2-a+dotprod+fp16"
    assert manifest["builder"]["machine"] == "x86_64"
    assert manifest["compiler"].startswith("aarch64-linux-gnu-g++")
    assert not (fleet.folder / "arm").exists(), "nothing is installed"
    # The strategy `artifact` takes the artifacts that the playbook has made.
    del fleet.variables["llama_cpp_builder"]
    given = {"llama_cpp_artifact": str(native), "llama_cpp_sha256": digest(native)}
    run = fleet.run("native", **given)
    assert run.code == 0, run.text
    assert "rpc-server" in fleet.programs("native")
