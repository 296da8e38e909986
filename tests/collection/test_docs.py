# SPDX-License-Identifier: GPL-3.0-or-later
"""`ansible-doc` shows a complete page for every plugin, module and role."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from support.tree import PLUGINS, Plugin, documentation

every_plugin = pytest.mark.parametrize("plugin", PLUGINS, ids=str)


def options(doc: dict[str, Any], key: str, prefix: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the options of a page, also those inside options, which are under `key`."""
    for name, option in (doc or {}).items():
        yield prefix + name, option
        yield from options(option.get(key), key, f"{prefix}{name}.")


@every_plugin
def test_page_is_whole(plugin: Plugin) -> None:
    page = documentation(plugin.kind)[plugin.fqcn]
    doc = page["doc"]
    for field in ("author", "short_description", "description", "version_added"):
        assert doc.get(field), f"no {field}"
    assert page["examples"], "no examples"
    assert page["return"], "no return values"
    for name, option in options(doc.get("options", {}), "suboptions"):
        assert option.get("description"), f"option {name} has no description"
        assert option.get("type"), f"option {name} has no type"
    for name, value in options(page["return"], "contains"):
        assert value.get("description"), f"return value {name} has no description"
        assert value.get("type"), f"return value {name} has no type"


@pytest.mark.parametrize("plugin", [plugin for plugin in PLUGINS if plugin.kind == "module"], ids=str)
def test_module_says_what_it_supports(plugin: Plugin) -> None:
    attributes = documentation("module")[plugin.fqcn]["doc"].get("attributes", {})
    for name in ("check_mode", "diff_mode", "idempotent"):
        assert attributes.get(name, {}).get("support") in ("full", "partial", "none", "N/A"), f"attribute {name}"
        assert attributes[name].get("description"), f"attribute {name} has no description"
