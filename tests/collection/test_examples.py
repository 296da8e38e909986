# SPDX-License-Identifier: GPL-3.0-or-later
"""The examples in the documentation work: those of plugins, and the code blocks of the pages."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from support.examples import MARKED, PAGES, Block, as_plays, blocks, blocks_of, tasks
from support.tree import COLLECTION, PLAYBOOKS, PLUGINS, ROLES, ROOT, Plugin, documentation, run

GROUP_KEYS = {"hosts", "children", "vars"}
MAKE_TARGETS = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
# The beginnings of paths by which a page names files of this checkout.
OURS = ("playbooks/", "inventories/", "scripts/", "roles/", "plugins/", "tests/", "docs/", "requirements/", ".ci/")

every_plugin = pytest.mark.parametrize("plugin", PLUGINS, ids=str)


def misused_options(entries: list[dict[str, Any]]) -> list[str]:
    """Return the uses of our modules that their argument specification refuses, apart from templates."""
    errors = []
    for task in tasks(entries):
        for plugin in PLUGINS:
            if plugin.kind == "module" and isinstance(task.get(plugin.fqcn), dict):
                options = documentation("module")[plugin.fqcn]["doc"].get("options", {})
                given = task[plugin.fqcn]
                templated = {name for name, value in given.items() if isinstance(value, str) and "{{" in value}
                spec = {
                    name: {
                        key: option[key]
                        for key in ("type", "elements", "choices", "aliases", "required")
                        if key in option and not (key in ("type", "choices", "elements") and name in templated)
                    }
                    for name, option in options.items()
                }
                found = ArgumentSpecValidator(spec).validate(given)
                errors += [f"{task.get('name')}: {message}" for message in found.error_messages]
    return errors


def unknown_variables(content: dict[str, Any]) -> list[str]:
    """Return those of these variables that no role has, or that have another type there."""
    options = {}
    for role in ROLES:
        entries = documentation("role")[f"{COLLECTION}.{role}"]["entry_points"]
        options.update(entries["main"]["options"] if "main" in entries else {})
    spec = {
        name: {key: option[key] for key in ("type", "elements", "choices") if key in option}
        for name, option in options.items()
    }
    return list(ArgumentSpecValidator(spec).validate(content).error_messages)


def role_variables(plays: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the variables that plays give to our roles."""
    found: dict[str, Any] = {}
    for play in plays:
        for role in play.get("roles", []):
            if isinstance(role, dict) and str(role.get("role")).startswith(COLLECTION):
                found.update(role.get("vars", {}))
    return found


def syntax_errors(plays: list[dict[str, Any]], folder: Path) -> str:
    """Return the errors of `ansible-playbook --syntax-check`, empty if there are none."""
    playbook = folder / "playbook.yml"
    playbook.write_text(yaml.safe_dump(plays, sort_keys=False))
    groups = {name: {"hosts": {"localhost": {}}} for name in ("llama_workers", "llama_masters", "llama_gateways")}
    inventory = folder / "hosts.yml"
    inventory.write_text(yaml.safe_dump(groups))
    result = run("ansible-playbook", "--syntax-check", "-i", inventory, playbook, cwd=folder)
    return result.stderr if result.returncode or "WARNING" in result.stderr else ""


@every_plugin
def test_examples_are_tasks_that_ansible_accepts(plugin: Plugin, tmp_path: Path) -> None:
    entries = yaml.safe_load(documentation(plugin.kind)[plugin.fqcn]["examples"])
    assert isinstance(entries, list)
    for task in tasks(entries):
        assert task.get("name"), f"a task without a name: {task}"
    assert misused_options(entries) == []
    assert syntax_errors(as_plays(entries), tmp_path) == ""
    if plugin.kind == "module":
        assert any(plugin.fqcn in task for task in tasks(entries)), "the examples do not use the module"


def sample(values: dict[str, Any]) -> dict[str, Any]:
    """Return the result that a page shows, put together from its samples."""
    result = {}
    for name, value in values.items():
        inner = sample(value["contains"]) if "contains" in value else None
        result[name] = value.get("sample", [inner] if inner and value["type"] == "list" else inner)
    return result


def with_samples(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Replace our tasks by their documented samples as registered results, because there is no cluster here."""
    ours = {plugin.fqcn for plugin in PLUGINS if plugin.kind == "module"}
    replaced = []
    for entry in entries:
        name = next(iter(ours & entry.keys()), None)
        if name and "register" in entry:
            result = sample(documentation("module")[name]["return"])
            replaced.append({"name": entry["name"], "ansible.builtin.set_fact": {entry["register"]: result}})
        elif not name:
            replaced.append(entry)
    return replaced


@pytest.mark.parametrize("plugin", [plugin for plugin in PLUGINS if plugin.kind == "filter"], ids=str)
def test_examples_of_a_filter_run(plugin: Plugin, tmp_path: Path) -> None:
    entries = yaml.safe_load(documentation(plugin.kind)[plugin.fqcn]["examples"])
    assert any(plugin.fqcn in str(task) for task in tasks(entries)), "the examples do not use the filter"
    playbook = tmp_path / "playbook.yml"
    playbook.write_text(yaml.safe_dump(as_plays(with_samples(entries)), sort_keys=False))
    inventory = tmp_path / "hosts.yml"
    reported = {"__rpc_tunnel_public_key": f"{'A' * 43}=", "common_outer_address": "192.0.2.11"}
    hosts = {"worker1": {"ansible_host": "192.0.2.11", **reported}}
    inventory.write_text(yaml.safe_dump({"llama_workers": {"hosts": hosts}}))
    # The log that examples name.
    log = ROOT / "tests" / "fixtures" / "logs" / "completion-0c1e57098-rpc7.0.0-lv4.log"
    (tmp_path / "run.log").write_bytes(log.read_bytes())
    result = run("ansible-playbook", "-i", inventory, playbook, cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "WARNING" not in result.stderr


@pytest.mark.parametrize("block", blocks("yaml", "yml"), ids=str)
def test_yaml_of_a_page_is_accepted(block: Block, tmp_path: Path) -> None:
    content = yaml.safe_load(block.text)
    if isinstance(content, list):
        assert misused_options(content) == []
        assert unknown_variables(role_variables(content)) == []
        assert syntax_errors(as_plays(content), tmp_path) == ""
        return
    if not any(isinstance(value, dict) and GROUP_KEYS & value.keys() for value in content.values()):
        assert unknown_variables(content) == []
        return
    inventory = tmp_path / "hosts.yml"
    inventory.write_text(block.text)
    result = run("ansible-inventory", "-i", inventory, "--list", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout)["_meta"]["hostvars"] or "hosts" in result.stdout


# Lists of hosts to copy. The inventories of the other clouds ask the provider.
VARIABLES = ("example/**/*.yml", "oracle/group_vars/*.yml", "hetzner/group_vars/*.yml")
STATIC = [path for pattern in VARIABLES for path in sorted((ROOT / "inventories").glob(pattern))]


@pytest.mark.parametrize("name", ["example", "oracle", "hetzner"])
def test_an_inventory_to_copy_has_a_master_and_two_workers(name: str, tmp_path: Path) -> None:
    result = run("ansible-inventory", "-i", ROOT / "inventories" / name, "--list", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    found = json.loads(result.stdout)
    assert [len(found[group]["hosts"]) for group in ("llama_masters", "llama_workers")] == [1, 2]


@pytest.mark.parametrize("path", STATIC, ids=lambda path: str(path.relative_to(ROOT / "inventories").with_suffix("")))
def test_variables_of_the_example_are_those_of_roles(path: Path) -> None:
    """Variables that are commented out count too: each must be one of a role, with its type."""
    text = path.read_text(encoding="utf-8")
    named = {} if path.stem == "hosts" else yaml.safe_load(text)
    shown = [yaml.safe_load(line) for line in re.findall(r"^ *# ([a-z_]+: .+)$", text, re.MULTILINE)]
    variables = {name: value for name, value in named.items() if "{{" not in str(value)}
    assert variables or shown
    for given in [variables, *shown]:
        ours = {name: value for name, value in given.items() if not name.startswith("ansible_")}
        assert unknown_variables(ours) == []


@pytest.mark.parametrize("block", blocks("bash", "sh", "shell", "console"), ids=str)
def test_commands_of_a_page_name_what_exists(block: Block) -> None:
    for line in block.text.splitlines():
        words = shlex.split(line.removeprefix("$ "), comments=True)
        if words[:1] == ["make"]:
            assert [word for word in words[1:] if "=" not in word and word.partition("-")[0] not in MAKE_TARGETS] == []
        assert [word for word in words if word.startswith(OURS) and not (ROOT / word).exists()] == []


# What a marker may say, by the language of its block. tests/pages does it; test_documented_examples.py runs an example.
MARKERS = {
    "bash": r"run (on this machine( until .+| after Ctrl-C)?|with test hosts)|not run: .+",
    "yaml": r"write \S+ with test hosts|example",
    "text": r"output",
}


@pytest.mark.parametrize("page", MARKED, ids=lambda page: page.name)
def test_every_block_of_a_first_page_has_a_marker(page: Path) -> None:
    found = blocks_of(page)
    assert page.read_text(encoding="utf-8").count("```") == 2 * len(found), "a fence that no pattern matches"
    assert [str(block) for block in found if not re.fullmatch(MARKERS[block.language], block.marker)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page_names_what_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    known = {plugin.name for plugin in PLUGINS} | set(ROLES) | set(PLAYBOOKS)
    known |= {path.stem for path in (*ROOT.glob("plugins/action/*.py"), *ROOT.glob("extensions/eda/rulebooks/*.yml"))}
    assert set(re.findall(rf"\b{re.escape(COLLECTION)}\.(\w+)", text)) - known == set()
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text)
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []
    paths = [path for path in re.findall(r"`([\w./-]+)`", text) if path.startswith(OURS)]
    assert [path for path in paths if not (ROOT / path).exists()] == []
