# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbook upgrade with actors for roles: hosts are folders of this machine, and each step can be made to fail.

Journal, trial, filters and the order of steps are the real ones. tests/upgrade has real hosts.

A cue is a file that an actor looks for, and then fails.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from support.harness import ROOT, ansible

if TYPE_CHECKING:
    from collections.abc import Mapping

OLD, NEW = "1.0", "2.0"
HOSTS = ("master", "worker1", "worker2")
# The groups of a cluster of two groups. The first host of each group is its master.
TWO_GROUPS = {"a": HOSTS, "b": ("master2", "worker3")}
PROTOCOL = {OLD: "5.0.0", NEW: "7.0.0"}


def _shell(script: str, **more: Any) -> dict[str, Any]:
    return {"name": "An actor plays", "ansible.builtin.shell": {"cmd": script}, "changed_when": False, **more}


_FACT = "ansible.builtin.set_fact"
_BRING = """
set -e
release={{ llama_cpp_prefix }}/releases/{{ llama_cpp_version }}-id
mkdir -p $release/bin
cp /bin/true $release/bin/rpc-server
cp {{ stage }}/manifest-{{ llama_cpp_version }}.json $release/manifest.json
"""
# Like tasks/probe.yml, this prints where the last upgrade came from, and the releases, newest first.
_LOOK = """
cd {{ llama_cpp_prefix }}
sed -n 's/^ *"from": "\\([A-Za-z0-9._+-]*\\)",*$/\\1/p' upgraded.json
ls -1tA releases
"""
# The worker then runs the release in use. A cue for the new release only does not stop the way back.
_START = """
cd {{ stage }}/{{ inventory_hostname }}
release=$(basename $(readlink prefix/current))
if [ -e cue-start-$release ]; then echo "the worker did not answer" >&2; exit 1; fi
echo $release >running
"""
_ADDRESS = {"name": "Address", _FACT: {"common_worker_address": "{{ inventory_hostname }}.example.com"}}
ROLES: dict[str, dict[str, list[dict[str, Any]]]] = {
    "common": {"address": [_ADDRESS]},
    "llama_cpp": {
        "validate": [{"name": "Pin", _FACT: {"llama_cpp_pin": {"version": "{{ llama_cpp_version }}", "source": ""}}}],
        "bring": [
            {"name": "Name", _FACT: {"llama_cpp_job": {"id": "{{ llama_cpp_version }}-id"}}},
            _shell(_BRING),
        ],
        "gather": [
            _shell(_LOOK, register="__look"),
            {
                "name": "Look",
                _FACT: {
                    "llama_cpp_host": {
                        "previous": "{{ __look.stdout_lines | first }}",
                        "folders": "{{ __look.stdout_lines[1:] }}",
                    }
                },
            },
        ],
    },
    "rpc_server": {
        **{name: [] for name in ("validate", "gather", "cores")},
        "inspect": [{"name": "Compare", _FACT: {"rpc_server_differences": {"restarts": [], "stale_ports": []}}}],
        "main": [_ADDRESS, _shell(_START)],
    },
    "rpc_firewall": {"validate": [], "sources": []},
    "rpc_tunnel": {"validate": []},
    "gguf_model": {"validate": []},
    # None of these masters serves an API. tests/serve has one that does.
    "llama_server": {"pause": [], "start_paused": [], "resume": []},
    "inference": {
        "look": [],
        "verify": [],
        "plan": [],
        "run": [
            _shell(
                "cat {{ stage }}/answer-$(basename $(readlink {{ llama_cpp_prefix }}/current)).json",
                register="__answer",
            ),
            {"name": "Result", _FACT: {"inference_outcome": "{{ __answer.stdout | from_json }}"}},
        ],
    },
}
VARIABLES: dict[str, dict[str, Any]] = {
    "llama_cpp": {"__llama_cpp_id": "{{ llama_cpp_job.id }}"},
}

_MODULE = """#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations
from ansible.module_utils.basic import AnsibleModule
module = AnsibleModule(argument_spec=%s, supports_check_mode=True)
"""
MODULES = {
    "llama_server_info": _MODULE % {"ask": {"type": "bool"}, "prompt": {"type": "str"}, "n_predict": {"type": "int"}}
    + "module.exit_json(changed=False, servers=[])\n",
    "rpc_worker_info": _MODULE % {"endpoints": {"type": "list"}, "expected_protocol": {"type": "str"}}
    + """
workers = [{"endpoint": name, "state": "ready", "message": ""} for name in module.params["endpoints"]]
module.exit_json(changed=False, workers=workers, all_ready=True)
""",
    "rpc_server_info": _MODULE % {"ports": {"type": "list"}}
    + """
module.exit_json(changed=False, servers=[{"port": port, "clients": []} for port in module.params["ports"]])
""",
}


class Stage:
    """A cluster of actors, with the old release."""

    def __init__(self, folder: Path, groups: Mapping[str, tuple[str, ...]] | None = None) -> None:
        self.folder = folder
        self.groups = groups or {"": HOSTS}
        # Further variables, by host.
        self.variables: dict[str, dict[str, Any]] = {}
        self.hosts = [host for hosts in self.groups.values() for host in hosts]
        self.masters = [hosts[0] for hosts in self.groups.values()]
        self.collection = folder / "collections/ansible_collections/llama_cpp/cluster"
        self._build()
        for version, protocol in PROTOCOL.items():
            manifest = {"version": version, "source": {"commit": version}, "rpc_protocol": protocol}
            (folder / f"manifest-{version}.json").write_text(json.dumps(manifest))
            answer = {"text": " Who's there?", "perf": {"eval": {"tokens_per_second": 20.0}}, "failure": None}
            (folder / f"answer-{version}-id.json").write_text(json.dumps(answer))
        for host in self.hosts:
            self._furnish(host)

    def _build(self) -> None:
        shutil.copytree(ROOT / "plugins", self.collection / "plugins", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(ROOT / "playbooks", self.collection / "playbooks")
        shutil.copy(ROOT / "galaxy.yml", self.collection)
        for name, text in MODULES.items():
            (self.collection / f"plugins/modules/{name}.py").write_text(text)
        for role, entries in ROLES.items():
            tasks = self.collection / "roles" / role / "tasks"
            tasks.mkdir(parents=True)
            for name, entry in entries.items():
                (tasks / f"{name}.yml").write_text(yaml.safe_dump(entry))
            (tasks.parent / "vars").mkdir()
            (tasks.parent / "vars/main.yml").write_text(yaml.safe_dump(VARIABLES.get(role, {})))
        # The tasks that switch and remove releases are the real ones.
        for name in ("use", "prune"):
            shutil.copy(ROOT / f"roles/llama_cpp/tasks/{name}.yml", self.collection / "roles/llama_cpp/tasks")

    def _furnish(self, host: str) -> None:
        release = self.folder / host / f"prefix/releases/{OLD}-id"
        (release / "bin").mkdir(parents=True)
        shutil.copy("/bin/true", release / "bin/rpc-server")
        manifest = {
            "version": OLD,
            "programs": ["rpc-server"],
            "source": {"commit": OLD},
            "rpc_protocol": PROTOCOL[OLD],
        }
        (release / "manifest.json").write_text(json.dumps(manifest))
        (self.folder / host / "prefix/current").symlink_to(f"releases/{OLD}-id")
        (self.folder / host / "running").write_text(f"{OLD}-id\n")

    def cue(self, name: str) -> Path:
        path = self.folder / name
        path.touch()
        return path

    def inventory(self, of_masters: dict[str, Any]) -> Path:
        path = self.folder / "hosts.yml"
        hosts = {
            host: {
                "ansible_connection": "local",
                "ansible_host": f"127.0.0.{number}", "ansible_port": 1,
                "llama_cpp_prefix": f"{self.folder}/{host}/prefix",
                "llama_group": next(group for group, hosts in self.groups.items() if host in hosts),
                **self.variables.get(host, {}),
            }
            for number, host in enumerate(self.hosts, 1)
        }  # fmt: skip
        common = {
            "stage": str(self.folder), "ansible_become": False, "ansible_python_interpreter": sys.executable,
            "gguf_model_path": "model.gguf", "llama_cpp_version": OLD, "llama_cpp_keep_releases": 2,
            # The actors have no argument specs, which say what is known.
            "llama_cpp_allow_unknown_variables": ["llama_cpp_keep_releases"],
        }  # fmt: skip
        inventory = {
            "all": {"vars": common},
            "llama_masters": {"hosts": {name: hosts[name] for name in self.masters}, "vars": of_masters},
            "llama_workers": {"hosts": {name: hosts[name] for name in self.hosts if name not in self.masters}},
        }
        path.write_text(yaml.safe_dump(inventory))
        return path

    def play(self, *options: str, settings: dict[str, str] | None = None, **of_masters: Any) -> tuple[int, str]:
        """Run the playbook with settings of Ansible and variables of masters; return its status and its output in a
        line.
        """
        environment = {
            "ANSIBLE_LOCALHOST_WARNING": "False", "ANSIBLE_COLLECTIONS_PATH": str(self.folder / "collections"),
            "ANSIBLE_HOME": str(self.folder / "ansible"), "ANSIBLE_CALLBACK_RESULT_FORMAT": "yaml", **(settings or {}),
        }  # fmt: skip
        playbook = self.collection / "playbooks/upgrade.yml"
        done = ansible("-i", self.inventory(of_masters), playbook, *options, **environment)
        return done.returncode, re.sub(r"\s+", " ", done.stdout)

    def has(self) -> dict[str, tuple[str, str, bool]]:
        """Return by host the release in use, the release that its worker runs, and whether an upgrade is noted."""
        return {
            host: (
                Path(os.readlink(self.folder / host / "prefix/current")).name,
                (self.folder / host / "running").read_text().strip() if host not in self.masters else "",
                (self.folder / host / "prefix/upgrade.json").exists(),
            )
            for host in self.hosts
        }

    def everywhere(self, version: str, group: str | None = None) -> None:
        """Assert that all hosts, or those of a group, have a release, and that nothing is left to do."""
        hosts = self.hosts if group is None else self.groups[group]
        assert {host: self.has()[host] for host in hosts} == {
            host: (f"{version}-id", f"{version}-id" if host not in self.masters else "", False) for host in hosts
        }
