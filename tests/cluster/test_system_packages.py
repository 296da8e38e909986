# SPDX-License-Identifier: GPL-3.0-or-later
"""Tests that roles record the packages that they install, and remove only these; on a host outside of the cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import yaml

from support.lab.hosts import ADDRESS, connect, play, ssh

HOST = "outsider"
RECORD = "/var/lib/llama_cpp_cluster/packages"
# A small package with a dependency that no other package needs.
WANTED = "oathtool"
BROUGHT = "liboath0t64"

Role = Callable[..., CompletedProcess[str]]


@pytest.fixture
def role(tmp_path: Path) -> Iterator[Role]:
    """Return a function that runs an entry point of the role; leave the host as it was."""
    if "Timeout" in connect(HOST, ADDRESS[HOST], 22):
        pytest.skip(f"{HOST} is not up")

    def entry(tasks_from: str, *options: str, **variables: Any) -> CompletedProcess[str]:
        task = {
            "name": "An entry point of the role",
            "ansible.builtin.include_role": {"name": "llama_cpp.cluster.common", "tasks_from": tasks_from},
            "vars": variables,
        }
        playbook = tmp_path / "playbook.yml"
        playbook.write_text(yaml.safe_dump([{"hosts": HOST, "gather_facts": False, "become": True, "tasks": [task]}]))
        return play(playbook, *options)

    before = installed()
    yield entry
    entry("remove_packages")
    assert installed() == before
    assert ssh(HOST, "ls", "-d", "/var/lib/llama_cpp_cluster", check=False).returncode != 0


def installed() -> set[str]:
    return set(ssh(HOST, "dpkg-query", "--show", "--showformat", "${Package}\\n").stdout.split())


def unchanged(done: CompletedProcess[str]) -> bool:
    return "changed=0" in done.stdout.partition("PLAY RECAP")[2]


@pytest.mark.long
def test_what_was_brought_is_on_record_and_goes_again(role: Role) -> None:
    before = installed()
    packages = {"Debian": [WANTED, "bash"], "RedHat": []}
    would = role("packages", "--check", common_packages=packages).stdout
    assert f"{WANTED} would be installed" in would
    assert installed() == before

    role("packages", common_packages=packages)
    brought = installed() - before
    assert {WANTED, BROUGHT} <= brought
    assert set(ssh(HOST, "cat", RECORD).stdout.split()) == brought, "bash was there before"
    assert unchanged(role("packages", common_packages=packages))

    role("remove_packages", "--check")
    assert installed() - before == brought
    role("remove_packages")
    assert installed() == before
    assert unchanged(role("remove_packages"))


@pytest.mark.long
def test_what_something_else_needs_by_now_stays_and_is_named(role: Role) -> None:
    role("packages", common_packages={"Debian": [BROUGHT]})
    ssh(HOST, "apt-get", "-qqy", "install", "--no-install-recommends", WANTED)
    try:
        done = role("remove_packages")
        assert f"so they stay: {BROUGHT}" in done.stdout
        assert {WANTED, BROUGHT} <= installed()
    finally:
        ssh(HOST, "apt-get", "-qqy", "purge", WANTED, BROUGHT)


@pytest.mark.long
def test_what_a_killed_run_has_installed_is_not_forgotten(role: Role) -> None:
    packages = {"Debian": [WANTED]}
    before = installed()
    role("packages", common_packages=packages)
    # The state between the installation and the record.
    ssh(HOST, "rm", RECORD)
    ssh(HOST, "tee", f"{RECORD}.before", text_in="\n".join(sorted(before)) + "\n")
    role("packages", common_packages=packages)
    assert set(ssh(HOST, "cat", RECORD).stdout.split()) == installed() - before
    ssh(HOST, "rm", RECORD)
    ssh(HOST, "tee", f"{RECORD}.before", text_in="\n".join(sorted(before)) + "\n")
    role("remove_packages")
    assert installed() == before
