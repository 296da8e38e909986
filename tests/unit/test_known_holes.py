# SPDX-License-Identifier: GPL-3.0-or-later
"""Which holes a build has: by the data of role llama_cpp, of its own archives and of others."""

from __future__ import annotations

from typing import Any

import pytest

from support.templates import loaded, worked_out
from support.tree import ROOT

VARS = loaded(ROOT / "roles/llama_cpp/vars/main.yml")
HOLES, ARCHIVES = VARS["__llama_cpp_holes"], VARS["__llama_cpp_archives"]
RCE = "CVE-2026-34159"
OLD = ["CVE-2024-42477", "CVE-2024-42478", "CVE-2024-42479"]


def judged(*, wanted: str = "rpc-server", vulnerable: bool = False, **build: Any) -> tuple[list[str], list[str]]:
    facts = {"holes": None, "number": 0, "protocol": "", **build}
    given = {"__llama_cpp_wanted": [wanted], "llama_cpp_allow_vulnerable": vulnerable, "__llama_cpp_build_facts": facts}
    found = worked_out(VARS["__llama_cpp_found_holes"], {**VARS, **given})
    return [hole["cve"] for hole in found["open"]], [hole["cve"] for hole in found["unknown"]]


@pytest.mark.parametrize(
    ("build", "has", "unknown"),
    [
        pytest.param({"number": 3560}, [*OLD, RCE], [], id="b3560"),
        pytest.param({"number": 3561}, [RCE], [], id="b3561"),
        pytest.param({"number": 8491}, [RCE], [], id="b8491"),
        pytest.param({"number": 8492}, [], [], id="b8492"),
        pytest.param({"protocol": "2.0.0"}, [RCE], [], id="protocol-2"),
        pytest.param({"protocol": "3.6.1"}, [], [RCE], id="protocol-3"),
        pytest.param({"protocol": "4.0.0"}, [], [], id="protocol-4"),
        pytest.param({"protocol": ""}, [], [*OLD, RCE], id="nothing-known"),
        pytest.param({"holes": [], "number": 1, "protocol": "2.0.0"}, [], [], id="a-look-counts-most"),
        pytest.param({"holes": [RCE], "protocol": "7.0.0"}, [RCE], [], id="a-look-counts-most-2"),
    ],
)
def test_what_is_known_of_a_build(build: dict[str, Any], has: list[str], unknown: list[str]) -> None:
    assert judged(**build) == (has, unknown)


def test_of_the_archives_only_those_before_the_fix_have_it() -> None:
    assert {version for version, archive in ARCHIVES.items() if RCE in archive["holes"]} == {"0.3.16"}
    assert judged(holes=ARCHIVES["0.3.36"]["holes"]) == ([], []), "the default pin"


def test_what_is_said_by_hand_agrees_with_protocols() -> None:
    for version, archive in ARCHIVES.items():
        has, unknown = judged(protocol=archive["protocol"])
        assert set(has) <= set(archive["holes"]) <= {*has, *unknown}, version


def test_the_page_names_each_hole_with_its_first_fixed_build() -> None:
    page = (ROOT / "docs/security.md").read_text()
    for hole in HOLES:
        line = next(line for line in page.splitlines() if line.startswith(f"| [{hole['cve']}]"))
        assert f"b{hole['fixed_build']}" in line
        assert hole["advisory"] in line


def test_holes_matter_to_whom_gets_the_server_and_has_not_allowed_them() -> None:
    assert judged(number=1) == ([*OLD, RCE], [])
    assert judged(number=1, vulnerable=True) == judged(number=1, wanted="llama-cli") == ([], [])
