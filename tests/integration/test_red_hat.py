# SPDX-License-Identifier: GPL-3.0-or-later
"""The packages that the roles would ask hosts of the RHEL family, and Ubuntu, to install.

No such host takes part, as no repository of the RHEL family could be reached. The facts are those that Ansible has of
such hosts.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from support.harness import ROOT
from support.stand_in_source import run_on_hosts

PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - made_up_facts:
        facts: "{{ facts }}"
    - ansible.builtin.include_vars:
        file: "ROOT/roles/{{ role }}/{{ item }}/main.yml"
      loop: [defaults, vars]
    - ansible.builtin.include_role:
        name: llama_cpp.cluster.common
        tasks_from: packages
      vars:
        common_packages: "{{ lookup('ansible.builtin.vars', '__' ~ role ~ '_packages') }}"
        __llama_cpp_builder: {machine: aarch64}
    - ansible.builtin.debug:
        msg: "repository {{ __llama_cpp_extra_repositories[ansible_facts['distribution']] | default('none') }}"
      vars:
        __llama_cpp_builder: {machine: aarch64}
        common_package_host: "{{ inventory_hostname }}"
      when: __llama_cpp_extra_repositories is defined
"""
FACTS = """#!/usr/bin/python
# WANT_JSON
import json, sys
print(json.dumps({"ansible_facts": json.load(open(sys.argv[1]))["facts"]}))
"""
# The distribution, its release, a role, and what is said of a host.
HOSTS = {
    "rocky": ("Rocky", "9", "llama_cpp", ["gcc, gcc-c++, cmake, ninja-build", "repository crb"]),
    "oracle": ("OracleLinux", "9", "llama_cpp", ["gcc-c++", "repository ol9_codeready_builder"]),
    "fedora": ("Fedora", "42", "llama_cpp", ["gcc-c++", "repository none"]),
    "rhel": ("RedHat", "10", "llama_cpp", ["codeready-builder-for-rhel-10-aarch64-rpms"]),
    "firewall": ("Rocky", "9", "rpc_firewall", ["firewalld would be installed"]),
    "ubuntu": ("Ubuntu", "24", "llama_cpp", ["gcc, g++, cmake, ninja-build", "repository none"]),
}


def test_a_host_is_asked_for_the_packages_of_its_family(tmp_path: Path) -> None:
    hosts = {}
    for name, (distribution, release, role, _said) in HOSTS.items():
        debian = distribution == "Ubuntu"
        facts = {
            "os_family": "Debian" if debian else "RedHat",
            "distribution": distribution,
            "distribution_major_version": release,
            "pkg_mgr": "apt" if debian else "dnf5" if distribution == "Fedora" else "dnf",
        }
        hosts[name] = {"facts": facts, "role": role}
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "made_up_facts.py").write_text(FACTS)
    (tmp_path / "play.yml").write_text(PLAY.replace("ROOT", str(ROOT)))
    # No package is installed on these hosts.
    for program in ("rpm", "dpkg-query"):
        (tmp_path / program).write_text("#!/bin/sh\n")
        (tmp_path / program).chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    run = run_on_hosts(tmp_path, hosts, {}, "--check", PATH=path)
    assert run.code == 0, run.text
    for name, (_distribution, _release, _role, said) in HOSTS.items():
        of_host = " ".join(re.findall(rf"^\w+: \[{name}\].*(?:\n +.*)*", run.text, re.MULTILINE))
        assert [words for words in said if words not in of_host] == [], run.text
