# SPDX-License-Identifier: GPL-3.0-or-later
"""The lookup source_patches: the patches of the collection that a source may have, by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.plugins.loader import lookup_loader

ROOT = Path(__file__).resolve().parents[3]
ROLE = ROOT / "roles/llama_cpp"
ARCHIVES = yaml.safe_load((ROLE / "vars/main.yml").read_text())["__llama_cpp_archives"]
DEFAULT = yaml.safe_load((ROLE / "defaults/main.yml").read_text())["llama_cpp_version"]
OWN = ARCHIVES[DEFAULT]["patches"]


def found(*names: str, version: str = DEFAULT) -> dict[str, Any]:
    lookup = lookup_loader.get("llama_cpp.cluster.source_patches")
    options = {"own": str(ROLE / "files/patches"), "sha256": ARCHIVES[version]["sha256"], "pinned": version}
    (result,) = lookup.run(list(names), variables={}, **options)
    return dict(result)


CHOICES = {"all": OWN, "none": [], **{f"without-{name}": [one for one in OWN if one != name] for name in OWN}}


@pytest.mark.parametrize("names", CHOICES.values(), ids=CHOICES.keys())
def test_all_but_one_and_none_are_allowed(names: list[str]) -> None:
    result = found(*names)
    assert result["problem"] == ""
    assert [(patch["name"], Path(patch["path"]).parent.name) for patch in result["patches"]] == [
        (name, DEFAULT) for name in names
    ]


@pytest.mark.parametrize("names", [OWN[:1], OWN[2:]], ids=["one", "two-left-out"])
def test_fewer_are_refused_with_what_is_missing(names: list[str]) -> None:
    missing = sorted(set(OWN) - set(names))
    assert found(*names)["problem"].startswith(
        f"llama_cpp_patches leaves out {' and '.join(missing)}: of the collection's"
    )


def test_a_version_without_patches_has_none_of_another_one() -> None:
    assert found(*OWN, version="0.3.35")["problem"].startswith(f"The patch {OWN[0]} is made for sha256:")


def test_an_unknown_name_is_told_what_there_is() -> None:
    problem = found("rpc-unpack")["problem"]
    assert problem.startswith("There is no patch rpc-unpack of this collection's own (there is ")
    assert all(name in problem for name in OWN)
