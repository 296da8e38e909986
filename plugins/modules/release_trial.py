#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Ansible module: runs each program of a llama.cpp release once."""

from __future__ import annotations

DOCUMENTATION = r"""
module: release_trial
short_description: Run each program of a llama.cpp release once
version_added: 0.1.0
author: The llama_cpp.cluster team (@llama-cpp-cluster)
description:
  - Runs each program of a llama.cpp release once, so that llama.cpp's CPU code is initialised. It reads no model, opens
    no port and uses no GPU.
  - If a program cannot run on this host, the module fails and says why, such as another machine, a missing library, or
    an instruction that this CPU lacks.
  - Before, it compares the CPU features that the C(manifest.json) of the release names with those of this host, because
    a short run does not reach every instruction.
  - As root it runs them as the account C(nobody), without privileges and network, and they see no files but their own
    and the system's. On a host where root may not make namespaces, such as a container without C(CAP_SYS_ADMIN), and
    for a release that not every account may read, it warns and runs them as root.
options:
  path:
    description: The folder of the release, whose programs are in C(bin).
    type: path
    required: true
  timeout:
    description: How many seconds each program may take.
    type: int
    default: 20
extends_documentation_fragment:
  - llama_cpp.cluster.reads_only
notes:
  - Needs coreutils' C(timeout) on the host, and util-linux as root.
"""

EXAMPLES = r"""
- name: Check that the programs run on this host
  llama_cpp.cluster.release_trial:
    path: /opt/llama_cpp/releases/0.3.36-0c1e57098-b0b4dbc1c4a5
"""

RETURN = r"""
programs:
  description: The programs that can run.
  returned: success
  type: list
  elements: str
"""

import re
import resource
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llama_cpp.cluster.plugins.module_utils._host.confined import confined
from ansible_collections.llama_cpp.cluster.plugins.module_utils._release.cpu_class import short_words
from ansible_collections.llama_cpp.cluster.plugins.module_utils._run.capabilities import (
    BinaryError,
    check_program,
    read_manifest,
)
from ansible_collections.llama_cpp.cluster.plugins.module_utils._run.runner import RunnerError, run
from ansible_collections.llama_cpp.cluster.plugins.module_utils._status.report import safe_text

# However busy the host is.
START_LIMIT_S = 60
# With these arguments a program initialises the CPU back end and ends, which not each does with --version. rpc-server
# could not listen at such a host name, and below a file there is no model.
LIST_DEVICES = ["--list-devices"]
ARGUMENTS = {
    "rpc-server": ["-H", "no-address", "-d", "no-such-device"],
    "llama-quantize": ["/dev/null/no-model", "/dev/null/no-output", "Q8_0"],
    **dict.fromkeys(("llama-cli", "llama-completion", "llama-server", "llama-bench"), LIST_DEVICES),
}
# Upstream's own settings and preloaded libraries could make a program do more. Using a GPU could take long.
WITHOUT_ENVIRONMENT = ("LLAMA_", "GGML_", "HF_", "LD_")
ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": "-1", "LC_ALL": "C"}
# What the loaders of glibc and musl say.
LOADER = re.compile(
    r"error while loading shared libraries: |^Error (?:loading|relocating) |: version `\S+' not found |"
    r"symbol lookup error: |CPU ISA level is lower than required",
    re.MULTILINE,
)
# As a shell gives it, where signals are above 128.
ILLEGAL_INSTRUCTION = 132
SIGNALS = range(129, 193)


def problem_of(exit_status: int, output: str) -> str:
    """Return why a program could not run, and what to do, by its end; empty if it ran."""
    lines = [" ".join(line.split()) for line in safe_text(output).splitlines() if line.strip()]
    loader = next((line for line in lines if LOADER.search(line)), "")
    if exit_status == ILLEGAL_INSTRUCTION or "CPU ISA level" in loader:
        return "uses an instruction that this CPU lacks: take a release of this host's CPU class, or build it here"
    if exit_status in SIGNALS:
        return f"was ended by signal {exit_status - 128} as soon as it started: install the release again"
    if loader:
        return (
            f"cannot be loaded ({loader}): install the library that is missing, or take a release that was built on "
            "this system or an older one"
        )
    if exit_status in (126, 127):
        return (
            f"cannot be started ({lines[-1] if lines else f'exit status {exit_status}'}): check whether its folder "
            "allows programs, or take a release for the C library of this host"
        )
    return ""


def missing_features(manifest: dict[str, object]) -> list[str]:
    """Return the CPU features that a release was built for and this host lacks."""
    built_for = manifest.get("cpu_class")
    features = built_for.get("features") if isinstance(built_for, dict) else None
    if not isinstance(built_for, dict) or not isinstance(features, list):
        return []
    here = set(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split())
    return short_words(str(built_for.get("machine")), [str(word) for word in features if word not in here])


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={"path": {"type": "path", "required": True}, "timeout": {"type": "int", "default": 20}},
        supports_check_mode=True,
    )
    folder, timeout = Path(module.params["path"]), module.params["timeout"]
    if timeout < 1:
        module.fail_json(msg=f"timeout must be at least 1 second, not {timeout}.")
    manifest = dict(read_manifest(str(folder / "bin")))
    named = manifest.get("programs")
    names = named if isinstance(named, list) else sorted(path.name for path in folder.glob("bin/*"))
    # Backends that are loaded at run time are in the same folder.
    programs = [folder / "bin" / str(name) for name in names if ".so" not in str(name)]
    if not programs:
        module.fail_json(msg=f"There is no program in {folder}/bin: install the release again.")
    lacks = missing_features(manifest)
    if lacks:
        module.fail_json(
            msg=f"{folder} cannot run on this host: it uses CPU features that this host lacks ({', '.join(lacks)}): "
            "take a release of this host's CPU class, or leave them out of llama_cpp_cpu_features where it is built."
        )
    # An illegal instruction must not leave a dump.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    # Programs may need libraries of compilers and GPUs in /opt, and a link to the release.
    prefix = confined([], [str(path) for path in (Path("/opt"), folder.resolve(), folder) if path.is_dir()])
    try:
        for path in programs:
            check_program(path)
        ready = run(module, [*prefix, "true"], START_LIMIT_S)
        if ready.exit_status != 0:
            prefix = []
            why = (ready.stderr.strip().splitlines() or ["it ended early"])[-1]
            module.warn(f"The programs of {folder}/bin run as root with the network, because {why}.")
        for path in programs:
            command = [*prefix, str(path), *ARGUMENTS.get(path.name, ["--version"])]
            ended = run(module, command, timeout, ENVIRONMENT, WITHOUT_ENVIRONMENT)
            if ended.timed_out:
                module.fail_json(msg=f"{path} did not end within {timeout} s: check what else keeps this host busy.")
            problem = problem_of(ended.exit_status, ended.stdout + ended.stderr)
            if problem:
                module.fail_json(msg=f"{path} {problem}.")
    except (BinaryError, RunnerError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, programs=[path.name for path in programs])


if __name__ == "__main__":
    main()
