# SPDX-License-Identifier: GPL-3.0-or-later
"""Hosts for role `llama_cpp`, which are folders of this machine."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.stand_in_source import Run, digest, ended, started

SITE = [{"hosts": "all", "gather_facts": False, "roles": ["llama_cpp.cluster.llama_cpp"]}]


@dataclass
class Fleet:
    """A controller, and hosts that share nothing but this machine."""

    folder: Path
    variables: dict[str, Any]
    hosts: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cache = self.folder / "cache"
        self.log = self.folder / "builds.log"
        (self.folder / "play.yml").write_text(json.dumps(SITE))

    def start(
        self, *hosts: str, playbook: Path | None = None, options: tuple[str, ...] = (), **variables: Any
    ) -> subprocess.Popen[str]:
        """Start a run with an inventory of its own; return its process."""
        inventory = {
            "llama_workers": {"hosts": {name: self.hosts[name] for name in hosts if "master" not in name}},
            "llama_masters": {"hosts": {name: self.hosts[name] for name in hosts if "master" in name}},
        }
        file = self.folder / f"hosts-{'-'.join(hosts)}.json"
        common = {
            "ansible_connection": "local",
            "ansible_become": False,
            "ansible_python_interpreter": sys.executable,
            "llama_cpp_prefix": f"{self.folder}/{{{{ inventory_hostname }}}}",
            "llama_cpp_manage_packages": False,
            **self.variables,
        }
        file.write_text(json.dumps({"all": {"vars": common, "children": inventory}}))
        return started(
            self.folder,
            {"ansible_connection": None, "ansible_python_interpreter": None, **variables},
            "--forks",
            "8",
            *options,
            inventory=str(file),
            playbook=playbook,
            LLAMA_CPP_CLUSTER_CACHE=str(self.cache),
            ANSIBLE_CONNECTION_PLUGINS=str(self.folder),
        )

    def run(self, *hosts: str, **options: Any) -> Run:
        return ended(self.start(*hosts, **options))

    def builds(self) -> list[str]:
        """Return the hosts that have built since the last call."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return [Path(line).relative_to(self.folder).parts[0] for line in lines]

    def artifacts(self) -> dict[str, str]:
        return {path.name: digest(path) for path in (self.cache / "artifacts").glob("*.tar.gz")}

    def record(self, host: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.cache / "artifacts" / f"{self.release(host)}.json").read_text())
        return found

    def current(self, host: str) -> Path:
        return self.folder / host / "current"

    def release(self, host: str) -> str:
        return self.current(host).readlink().name

    def programs(self, host: str) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (self.current(host) / "bin").iterdir()}

    def has_an_older_release(self, host: str) -> None:
        """Give a host a release, as if from an earlier run."""
        folder = self.folder / host / "releases" / "old"
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text("{}")
        self.current(host).symlink_to("releases/old")

    def is_as_it_was(self, host: str) -> bool:
        """Return whether the host uses the older release, and has nothing half-written."""
        left = {str(path.relative_to(self.folder / host)) for path in (self.folder / host).rglob("*")}
        return self.release(host) == "old" and left == {
            "current", "releases", "releases/old", "releases/old/manifest.json",
        }  # fmt: skip

    def failed(self, run: Run, host: str, *words: str) -> None:
        """Assert that a host failed with a message that has these words."""
        found = re.findall(rf"^(?:fatal|failed): \[{host}(?: -> .*?)?\].*(?:\n .*)*", run.text, re.MULTILINE) or [
            "no failure"
        ]
        text = " ".join(found[-1].split()).replace("''", "'")  # as YAML quotes it
        for word in words:
            assert word in text, f"{host}: {word!r} is not in: {text}"
