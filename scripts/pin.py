# SPDX-License-Identifier: GPL-3.0-or-later
"""Make another build of llama.cpp the default: `scripts/pin.py b11700`, or the newest build without an argument.

It fetches the source, carries the patches over, writes what follows from the source into this checkout, builds the
release, records its help, and runs the tests that know what a new pin may change. It ends with what a person has to
decide. Where a patch does not fit, it runs the demo with the core patches that do, and stops: resolve the conflicts in
the tree that it names, commit --amend each, and call it again. .venv must be active; the network is needed.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from patches import ARCHIVES, CACHE, DEFAULT, PATCHES, ROLE, ROOT, PatchesError, export, git, rebase, stem_of

# Places that name the default version. Pages of figures keep the one that was measured.
NAMED = (
    "README.md", "docs/reference/playbooks/verify.md", "docs/reference/rpc-server-holes.md",
    "docs/start/two-cloud-instances.md", "inventories/example/group_vars/all.yml",
    "plugins/module_utils/_gguf/ggml_types.py",
    "roles/llama_cpp/README.md", "roles/llama_cpp/defaults/main.yml", "roles/llama_cpp/meta/argument_specs.yml",
    "tests/cluster/test_playbooks.py", "tests/unit/_measure/test_bench.py", "tests/unit/_run", "tests/unit/_serve",
)  # fmt: skip
TESTS = (
    "tests/collection/test_pin.py", "tests/unit/test_known_holes.py", "tests/integration/test_pinned_tables.py",
    "tests/integration/test_patch_files.py", "tests/integration/test_server_options.py",
    "tests/integration/test_rpc_check.py", "tests/integration/test_repack.py", "tests/integration/test_rpc_master.py",
    "tests/integration/test_turns.py", "tests/integration/test_engine_plan.py",
    "tests/integration/test_distributed_inference.py", "tests/integration/test_llama_bench.py",
    "tests/performance/test_patch_choices.py",
)  # fmt: skip

LEFT = """\
- Logs: record one of llama-completion in tests/fixtures/logs, and a run of llama-bench in tests/fixtures/bench.
- Do the new commands, architectures and options above concern the patches, the planner or rpc-safety?
- Known holes: read upstream's reports since {old}.
- Run `make test`, the tiers performance, fuzz, upgrade, tunnel and aarch64, and `make bench`.
- Write a fragment of the changelog."""


def ran(*command: str | Path, **environment: str) -> str:
    """Run a command to its end, and return its output."""
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise PatchesError(f"{' '.join(map(str, command[:4]))} failed: {done.stderr.strip()[-500:]}")
    return done.stdout


def package_of(build: str) -> str:
    """Return the requirement of the package that has a build, or the newest one's if none is named."""
    return ran("sh", ROLE / "files/find_build.sh", CACHE / "sources", build, sys.executable).strip()


def fetched(package: str) -> tuple[Path, str]:
    """Return the path and the digest of a package's source archive."""
    name = package.replace("==", "-") + ".tar.gz"
    path = CACHE / "sources" / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.parent / f".{name}.pin"
        options = ("--quiet", "--no-deps", "--no-binary", ":all:", "--no-build-isolation", "--dest", part)
        ran(sys.executable, "-m", "pip", "download", *options, package, PYTHONPATH=str(ROLE / "files/build_backend"))
        (part / name).rename(path)
        part.rmdir()
    return path, hashlib.sha256(path.read_bytes()).hexdigest()


def read(archive: Path, *names: str) -> list[str]:
    """Return the content of files of llama.cpp in an archive."""
    found = dict.fromkeys(names, "")
    with tarfile.open(archive) as tar:
        for member in tar:
            name = next((name for name in names if member.name.endswith(f"/llama.cpp/{name}")), None)
            stream = tar.extractfile(member) if name else None
            if name and stream:
                found[name] = stream.read().decode()
    return list(found.values())


def facts(archive: Path) -> dict[str, set[str]]:
    """Return what a source has, by subject: its protocol, types of tensors, architectures, commands, and options."""
    rpc, commands, types, architectures, options = read(
        archive, "ggml/include/ggml-rpc.h", "ggml/src/ggml-rpc/ggml-rpc.cpp", "ggml/include/ggml.h",
        "src/llama-arch.cpp", "common/arg.cpp",
    )  # fmt: skip
    numbers = re.findall(r"define RPC_PROTO_(?:MAJOR|MINOR|PATCH)_VERSION +(\d+)", rpc)
    return {
        "RPC protocol": {".".join(numbers)},
        "RPC commands": set(re.findall(r"^ +(RPC_CMD_\w+)", commands, re.MULTILINE)),
        "types of tensors": set(re.findall(r"^ +(GGML_TYPE_\w+) +=", types, re.MULTILINE)),
        "architectures": set(re.findall(r'\{ LLM_ARCH_\w+, +"([^"]+)"', architectures)),
        "options": set(re.findall(r'"(--[a-z][\w-]+)"', options)),
    }


def write_table(build: str, package: str, sha256: str, protocol: str) -> None:
    """Add a version to the role's table, as the only one with patches."""
    path = ROLE / "vars/main.yml"
    text = path.read_text()
    of_default = re.search(rf"^  {re.escape(DEFAULT)}:\n(?:    .*\n)+", text, re.MULTILINE)
    if not of_default:
        raise PatchesError(f"{path} has no entry of {DEFAULT}.")
    entry = re.sub(r"    (?:plans|patches): .*\n", "", of_default[0])
    names = f"    plans: true\n    patches: [{', '.join(ARCHIVES[DEFAULT]['patches'])}]\n"
    new = f'  {build}:\n    package: {package}\n    sha256: {sha256}\n    commit: ""\n    protocol: {protocol}\n{names}'
    path.write_text(text.replace(of_default[0], entry + new))
    specs = ROLE / "meta/argument_specs.yml"
    specs.write_text(specs.read_text().replace(f" and V({DEFAULT}),", f", V({DEFAULT}) and V({build}),"))
    page = ROOT / "docs/reference/compatibility.md"
    row = f"| {DEFAULT} | {ARCHIVES[DEFAULT]['protocol']} |\n"
    page.write_text(page.read_text().replace(row, f"{row}| {build} | {protocol} |\n"))


def rename_default(build: str, sha256: str, protocol: str) -> None:
    """Write the new default's name in place of the old one's, except in lines that have both."""
    old = f"{DEFAULT}-{(ARCHIVES[DEFAULT]['commit'] or ARCHIVES[DEFAULT]['sha256'])[:9]}"
    for name in NAMED:
        for path in (ROOT / name).rglob("*") if (ROOT / name).is_dir() else [ROOT / name]:
            if path.suffix not in {".md", ".py", ".yml"}:
                continue
            text = path.read_text().replace(old, f"{build}-{sha256[:9]}")
            lines = [
                line if build in line else re.sub(rf"(?<![\w.]){re.escape(DEFAULT)}(?![\w.])", build, line)
                for line in text.splitlines(keepends=True)
            ]
            path.write_text("".join(lines).replace(f"{build} (RPC protocol {ARCHIVES[DEFAULT]['protocol']})",
                                                   f"{build} (RPC protocol {protocol})"))  # fmt: skip


def record(build: str) -> None:
    """Build the release, and record what its programs say of themselves, in place of the old default's."""
    subprocess.run(["ansible-playbook", "tests/support/releases.yml"], cwd=ROOT, check=True)
    programs = CACHE / f"test_releases/{build}/current/bin"
    folder = ROOT / "tests/fixtures/capabilities"
    for name in ("llama-completion", "llama-bench"):
        for what in ("help", "version"):
            done = subprocess.run([f"./{name}", f"--{what}"], cwd=programs, capture_output=True, text=True, check=True)
            said = done.stdout if what == "help" else re.sub("warning: .*\n", "", done.stdout + done.stderr)
            (folder / f"{name}-{build}-{what}.txt").write_text(said)
            (folder / f"{name}-{DEFAULT}-{what}.txt").unlink(missing_ok=True)


def tried(build: str, sha256: str) -> None:
    """Run the demo with a build as users get it without an entry in the table, in both split modes."""
    for mode in "layer", "tensor":
        asked = [f"llama_cpp_version={build}", f"llama_cpp_sha256={sha256}", f"inference_extra_args=['-sm', '{mode}']"]
        command = ["scripts/demo.sh", *(word for each in asked for word in ("-e", each))]
        environment = {**os.environ, "MODEL": "random", "WORKERS": "2"}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        said = re.findall(r"Warning: .*", done.stdout)
        end = "works" if done.returncode == 0 else f"failed:\n{(done.stdout + done.stderr)[-2000:]}"
        print("\n".join([*said, f"The demo with {build} in split mode {mode} {end}"]))


def run(build: str) -> int:
    """Move the pin, and return the exit status: 0 if all tests pass, 1 if something is left to do."""
    package = package_of(build)
    build = f"b{package.rpartition('.')[2]}"
    if build in ARCHIVES:
        print(f"{build} is in the role's table already.")
        return 0
    archive, sha256 = fetched(package)
    then, now = facts(CACHE / f"sources/{stem_of(DEFAULT)}.tar.gz"), facts(archive)
    (protocol,) = now["RPC protocol"]
    print(f"{package}: sha256 {sha256}, RPC protocol {protocol}")
    for subject, has in now.items():
        for how, names in (("new", has - then[subject]), ("gone", then[subject] - has)):
            if names:
                print(f"{subject}, {how}: {', '.join(sorted(names))}")

    tree = ROOT / f"build/pin/{build}"
    if tree.exists():
        git(tree, "diff", "--quiet", "HEAD")
    else:
        source = ROOT / f"build/pin/{build}-source"
        shutil.rmtree(source, ignore_errors=True)
        source.mkdir(parents=True)
        inside = f"{package.replace('==', '-')}/thirdparty/llama.cpp"
        ran("tar", "-xf", archive, "-C", source, "--strip-components=3", "--no-same-owner", inside)
        if not rebase(str(source), tree, name=build, origin=f"sha256:{sha256}"):
            tried(build, sha256)
            print(f"\nResolve the conflicts in {tree}, amend their commits, and call this again.")
            return 1
    marked = subprocess.run(["git", "grep", "-l", "^<<<<<<< "], cwd=tree, capture_output=True, text=True, check=False)
    if marked.stdout:
        print(f"{tree} still has conflicts in {', '.join(marked.stdout.split())}: resolve them, and call this again.")
        return 1

    export(tree, PATCHES / build)
    shutil.rmtree(PATCHES / DEFAULT)
    write_table(build, package, sha256, protocol)
    rename_default(build, sha256, protocol)
    record(build)
    failed = subprocess.run(["pytest", "-q", *TESTS], cwd=ROOT, check=False).returncode != 0
    print(f"\nLeft to a person{', besides the tests that failed' if failed else ''}:\n{LEFT.format(old=DEFAULT)}")
    return int(failed)


if __name__ == "__main__":
    try:
        raise SystemExit(run(*(sys.argv[1:2] or [""])))
    except PatchesError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
