#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Ansible module: plans the firewalld changes that let only trusted addresses reach the RPC ports."""

from __future__ import annotations

DOCUMENTATION = r"""
module: rpc_firewall_info
short_description: Find what must change in firewalld so that only trusted addresses reach the RPC ports
version_added: 0.1.0
description:
  - Reads firewalld's permanent and runtime configuration, or only the permanent one if the daemon does not run. It
    compares them with a zone that admits the trusted addresses and opens only the RPC ports.
  - Returns the changes, in an order that keeps the module's own SSH session open, and what prevents them. It
    changes nothing. The role P(llama_cpp.cluster.rpc_firewall#role) makes the changes.
  - For a host without firewalld, it returns what would have to change in firewalld's defaults.
author: The llama_cpp.cluster team (@llama-cpp-cluster)
options:
  zone:
    description: The name of the zone.
    type: str
    required: true
  state:
    description: Whether the zone should exist. If not, O(sources) and O(ports) have no effect.
    type: str
    choices: [present, absent]
    default: present
  sources:
    description: The trusted addresses as CIDRs.
    type: list
    elements: str
    default: []
  ports:
    description: The RPC ports (TCP).
    type: list
    elements: int
    default: []
  port_sources:
    description: For each port that not all O(sources) may reach, the CIDRs that may. The CIDRs must be in O(sources),
      and the port in O(ports).
    type: dict
    default: {}
  tunnel_port:
    description: The UDP port of a tunnel, which all O(sources) can reach. V(0) means that there is no tunnel.
    type: int
    default: 0
extends_documentation_fragment:
  - llama_cpp.cluster.reads_only
notes:
  - Needs root, as firewalld does.
  - It does not check direct rules and the entries of ipsets.
"""

EXAMPLES = r"""
- name: Find what has to change
  llama_cpp.cluster.rpc_firewall_info:
    zone: llama-rpc
    sources: [10.0.0.10/32]
    ports: [50052]
  become: true
  register: firewall

- name: Show the changes
  ansible.builtin.debug:
    msg: "{{ firewall.changes }}"
"""

RETURN = r"""
firewalld:
  description: V(running), V(stopped), or V(absent) if it is not installed.
  returned: success
  type: str
enabled:
  description: Whether firewalld starts with the host.
  returned: success
  type: bool
managers:
  description: Other programs that manage the firewall of this host right now.
  returned: success
  type: list
  elements: str
problems:
  description: Why the ports cannot be closed to others, one sentence each with its remedy.
  returned: success
  type: list
  elements: str
changes:
  description: What has to change, for a reader; empty if nothing has to change.
  returned: success
  type: list
  elements: str
commands:
  description: The commands that change it, in this order. On a host without firewalld they assume its defaults.
  returned: success
  type: list
  elements: dict
  sample:
    - argv: [firewall-cmd, --permanent, --zone=llama-rpc, --add-source=10.0.0.10/32]
      text: source 10.0.0.10/32 added to zone llama-rpc (permanent)
"""

import ipaddress
import json
import os
import re
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.llama_cpp.cluster.plugins.module_utils._host.firewalld import (
    Service,
    Session,
    State,
    View,
    Zone,
    parse_service,
    parse_zones,
    read_service,
    used_services,
)
from ansible_collections.llama_cpp.cluster.plugins.module_utils._host.firewalld_plan import plan_removal, plan_zone

# These manage the firewall if their unit is active. The units of ufw and nftables can be active without any effect.
_UNITS = ("iptables", "ip6tables", "netfilter-persistent")
_LISTS = ("zones", "policies")
# The first folder that has a service decides, as in firewalld.
_SERVICE_FOLDERS = (Path("/etc/firewalld/services"), Path("/usr/lib/firewalld/services"))
# firewalld's own defaults, for a host that does not have firewalld yet.
_STOCK = View("public", {"public": Zone("public", services=("dhcpv6-client", "ssh"))}, {})
_STOCK_SERVICES = {"ssh": Service(ports=("22/tcp",)), "dhcpv6-client": Service(ports=("546/udp",))}


# firewalld's programs are written in Python, and their start takes longer than their work. So this program answers all
# questions in one process. Each question runs as it would by itself.
_ALL_AT_ONCE = """
import contextlib, io, json, runpy, sys
program, questions, answers = sys.argv[1], json.loads(sys.argv[2]), []
for question in questions:
    sys.argv, out, status = [program, *question], io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        try:
            runpy.run_path(program, run_name="__main__")
        except SystemExit as end:
            status = end.code
    answers.append(None if status else out.getvalue())
json.dump(answers, sys.stdout)
"""


class Host:
    """The queries to the host; all of them only read."""

    def __init__(self, module: AnsibleModule) -> None:
        self._module = module
        # The output of programs, by their command.
        self._known: dict[tuple[str, ...], str] = {}

    def _ended(self, *command: str, required: bool = False) -> tuple[int, str, str]:
        if command in self._known:
            return 0, self._known[command], ""
        path = self._module.get_bin_path(command[0], required=required)
        if path is None:
            return 1, "", ""
        # firewalld translates its output.
        status, out, err = self._module.run_command([path, *command[1:]], environ_update={"LC_ALL": "C"})
        return status, out, err

    def run(self, *command: str) -> str | None:
        """Return the output of a program; None if it fails or is missing."""
        status, out, _err = self._ended(*command)
        return out if status == 0 else None

    def ask_at_once(self, program: str, *questions: tuple[str, ...]) -> None:
        """Ask a program of firewalld all questions at once. Questions without an answer are asked later one by one."""
        path = self._module.get_bin_path(program)
        interpreter = [] if path is None else _interpreter(path)
        if not interpreter:
            return
        # Isolated: nothing is imported from the working directory.
        command = [*interpreter, "-I", "-c", _ALL_AT_ONCE, path, json.dumps(questions)]
        status, out, _err = self._module.run_command(command, environ_update={"LC_ALL": "C"})
        try:
            answers = json.loads(out) if status == 0 else []
        except ValueError:
            answers = []
        for question, answer in zip(questions, answers):
            if answer is not None:
                self._known[(program, *question)] = answer

    def firewalld(self) -> str:
        """Return whether firewalld is running, stopped or absent."""
        if self._module.get_bin_path("firewall-cmd") is None:
            return "absent"
        views = [(*permanently, f"--list-all-{what}") for permanently in [("--permanent",), ()] for what in _LISTS]
        self.ask_at_once("firewall-cmd", ("--state",), ("--get-default-zone",), *views)
        if self.run("firewall-cmd", "--state") is not None:
            return "running"
        self.ask_at_once("firewall-offline-cmd", ("--get-default-zone",), *((f"--list-all-{what}",) for what in _LISTS))
        return "stopped"

    def state(self, firewalld: str) -> State:
        """Return the configurations and the services that they use."""
        if firewalld == "absent":
            return State(_STOCK, None, _STOCK_SERVICES)
        running = firewalld == "running"
        permanently = ("firewall-cmd", "--permanent") if running else ("firewall-offline-cmd",)
        # firewalld has one default zone for both configurations.
        default = self.read("firewall-cmd" if running else "firewall-offline-cmd", "--get-default-zone").strip()
        permanent = self._view(permanently, default)
        runtime = self._view(("firewall-cmd",), default) if running else None
        asked = [zone for view in (permanent, runtime) if view for zone in (*view.in_use(), *view.into_host())]
        services: dict[str, Service] = {}
        waiting = used_services(asked)
        while waiting:
            name = waiting.pop()
            services[name] = self._service(name, permanently)
            waiting |= set(services[name].includes) - set(services)
        return State(permanent, runtime, services)

    def _service(self, name: str, command: tuple[str, ...]) -> Service:
        """Return a service from its file, as firewalld reads it; if that fails, from its program, which is slow."""
        for folder in _SERVICE_FOLDERS:
            path = folder / f"{name}.xml"
            if path.exists():
                service = read_service(path)
                if service is not None:
                    return service
                break
        # A service that is used but does not exist opens nothing.
        return parse_service(self.run(*command, f"--info-service={name}") or "")

    def _view(self, command: tuple[str, ...], default: str) -> View:
        zones = parse_zones(self.read(*command, "--list-all-zones"))
        # firewalld has policies since 0.9.
        policies = parse_zones(self.run(*command, "--list-all-policies") or "")
        return View(default, zones, policies)

    def read(self, *command: str) -> str:
        """Return the output of a program; fail if the program fails."""
        status, out, err = self._ended(*command, required=True)
        if status != 0:
            problem = " ".join((err or out).split())
            self._module.fail_json(
                msg=f"`{' '.join(command)}` fails ({problem}): correct firewalld's configuration; "
                "`firewall-offline-cmd --check-config` says more."
            )
        return out

    def managers(self) -> list[str]:
        """Return the other programs that manage the firewall."""
        found = [unit for unit in _UNITS if self.run("systemctl", "is-active", unit)]
        try:
            settings = Path("/etc/ufw/ufw.conf").read_text(encoding="utf-8", errors="replace")
        except OSError:
            settings = ""
        # A package that was removed may leave its settings.
        if self._module.get_bin_path("ufw") and re.search(r"^\s*ENABLED\s*=\s*['\"]?yes", settings, re.I | re.M):
            found.append("ufw")
        if self.run("systemctl", "is-active", "nftables") and self._has_own_rules():
            found.append("nftables")
        return sorted(found)

    def _has_own_rules(self) -> bool:
        """Return whether there are rules, or chains that drop, in tables that are not firewalld's."""
        for entry in json.loads(self.run("nft", "-j", "list", "ruleset") or "{}").get("nftables", []):
            rule = entry.get("rule") or entry.get("chain") or {}
            counts = "rule" in entry or rule.get("policy") == "drop"
            if counts and not str(rule.get("table", "")).startswith("firewalld"):
                return True
        return False

    def unit_state(self) -> str:
        """Return systemd's state of firewalld's unit, such as enabled; the role itself sets a mask until the reboot."""
        path = self._module.get_bin_path("systemctl")
        return "" if path is None else str(self._module.run_command([path, "is-enabled", "firewalld"])[1]).strip()

    def session(self) -> Session | None:
        """Return the SSH session that this process descends from.

        A change of user drops the session from the environment, so this also searches the parent processes.
        """
        pid = os.getpid()
        while pid > 1:
            connection = _environment(pid).get("SSH_CONNECTION", "").split()
            if len(connection) == 4:
                client = ipaddress.ip_address(connection[0].partition("%")[0])
                if client.is_loopback:
                    return None
                return Session(client, int(connection[3]), self._interface(connection[2].partition("%")[0]))
            pid = _parent(pid)
        return None

    def _interface(self, address: str) -> str:
        shown = (self.run("ip", "-o", "address", "show", "to", address) or "").split()
        return shown[1] if len(shown) > 1 else ""


def _interpreter(path: str) -> list[str]:
    """Return the interpreter of a program if it is Python, else an empty list."""
    try:
        with Path(path).open(encoding="utf-8", errors="replace") as program:
            words = program.readline(200).split()
    except OSError:
        return []
    first = " ".join(words)[2:].split() if words and words[0].startswith("#!") else []
    return first if first and re.search(r"python[0-9.]*$", first[0]) else []


def _environment(pid: int) -> dict[str, str]:
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes().decode("utf-8", "replace")
    except OSError:
        return {}
    return dict(entry.partition("=")[::2] for entry in text.split("\0"))


def _parent(pid: int) -> int:
    try:
        return int(
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1]
        )
    except (OSError, ValueError, IndexError):
        return 0


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "zone": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "sources": {"type": "list", "elements": "str", "default": []},
            "ports": {"type": "list", "elements": "int", "default": []},
            "port_sources": {"type": "dict", "default": {}},
            "tunnel_port": {"type": "int", "default": 0},
        },
        supports_check_mode=True,
    )
    params = module.params
    host = Host(module)
    firewalld = host.firewalld()
    session = host.session()
    state = host.state(firewalld)
    if params["state"] == "present":
        port_sources = {int(port): sources for port, sources in params["port_sources"].items()}
        wanted = (params["sources"], params["ports"], state, session, port_sources, params["tunnel_port"])
        plan = plan_zone(params["zone"], *wanted)
    else:
        plan = plan_removal(params["zone"], state, session)
    problems = plan.problems
    unit_state = host.unit_state()
    # Somebody has decided that firewalld must not run.
    if params["state"] == "present" and unit_state == "masked":
        problems = [*problems, "firewalld.service is masked: unmask it with `systemctl unmask firewalld`."]
    module.exit_json(
        changed=False,
        firewalld=firewalld,
        enabled=unit_state == "enabled",
        managers=host.managers(),
        problems=problems,
        changes=plan.texts(),
        commands=[{"argv": argv, "text": text} for text, argv in plan.commands(running=firewalld == "running")],
    )


if __name__ == "__main__":
    main()
