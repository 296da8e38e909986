# SPDX-License-Identifier: GPL-3.0-or-later
"""The packages that the roles would ask hosts of the RHEL family, and Ubuntu, to install.

No such host takes part, as no repository of the RHEL family could be reached. The facts are those that Ansible has of
such hosts.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from support.harness import ROOT, ansible

PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - made_up_facts:
    - ansible.builtin.include_vars:
        file: "{root}/roles/{role}/{{{{ item }}}}/main.yml"
      loop: [defaults, vars]
    - ansible.builtin.include_role:
        name: llama_cpp.cluster.common
        tasks_from: packages
      vars:
        common_packages: "{{{{ {variable} }}}}"
        __llama_cpp_builder: {{machine: aarch64}}
    - ansible.builtin.debug:
        msg: "repository {{{{ __llama_cpp_extra_repositories[ansible_facts['distribution']] | default('none') }}}}"
      vars:
        __llama_cpp_builder: {{machine: aarch64}}
        common_package_host: el9
      when: __llama_cpp_extra_repositories is defined
"""


@pytest.mark.parametrize(
    ("distribution", "release", "role", "variable", "said"),
    [
        ("Rocky", "9", "llama_cpp", "__llama_cpp_packages", ["gcc, gcc-c++, cmake, ninja-build", "repository crb"]),
        ("OracleLinux", "9", "llama_cpp", "__llama_cpp_packages", ["gcc-c++", "repository ol9_codeready_builder"]),
        ("Fedora", "42", "llama_cpp", "__llama_cpp_packages", ["gcc-c++", "repository none"]),
        ("RedHat", "10", "llama_cpp", "__llama_cpp_packages", ["codeready-builder-for-rhel-10-aarch64-rpms"]),
        ("Rocky", "9", "rpc_firewall", "__rpc_firewall_packages", ["firewalld would be installed"]),
        ("Ubuntu", "24", "llama_cpp", "__llama_cpp_packages", ["gcc, g++, cmake, ninja-build", "repository none"]),
    ],
)
def test_a_host_is_asked_for_the_packages_of_its_family(
    tmp_path: Path, distribution: str, release: str, role: str, variable: str, said: list[str]
) -> None:
    debian = distribution == "Ubuntu"
    facts = {
        "os_family": "Debian" if debian else "RedHat",
        "distribution": distribution,
        "distribution_major_version": release,
        "pkg_mgr": "apt" if debian else "dnf5" if distribution == "Fedora" else "dnf",
    }
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "made_up_facts.py").write_text(
        f"#!/usr/bin/python\nprint({json.dumps(json.dumps({'ansible_facts': facts}))})\n"
    )
    (tmp_path / "play.yml").write_text(PLAY.format(root=ROOT, role=role, variable=variable))
    # No package is installed on this host.
    for program in ("rpm", "dpkg-query"):
        (tmp_path / program).write_text("#!/bin/sh\n")
        (tmp_path / program).chmod(0o755)
    given = json.dumps({"ansible_connection": "local", "ansible_python_interpreter": sys.executable})
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = ansible("-i", "el9,", "--check", "-e", given, tmp_path / "play.yml", PATH=path)
    assert done.returncode == 0, done.stdout + done.stderr
    for words in said:
        assert words in done.stdout, done.stdout
