# SPDX-License-Identifier: GPL-3.0-or-later
"""The terminal in which tests type a page's commands notices what fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.terminal import Terminal, environment_of_a_user, missing_lines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.setenv("ANSIBLE_CONFIG", "/nonexistent")
    opened = Terminal(tmp_path, environment_of_a_user(tmp_path, tmp_path), tmp_path)
    yield opened
    opened.close()


def test_folder_and_variables_stay_and_the_environment_is_a_user_s(terminal: Terminal, tmp_path: Path) -> None:
    assert terminal.type('mkdir "a b"\ncd "a b"\nKEY=value\nsleep 60 &\n') == ""
    assert terminal.type('echo "$KEY" "${PWD##*/}" "$HOME" "${ANSIBLE_CONFIG:-none}"') == f"value a b {tmp_path} none\n"
    assert terminal.folder == tmp_path / "a b"


def test_a_command_that_fails_fails_the_block_with_its_output(terminal: Terminal) -> None:
    with pytest.raises(AssertionError, match="a command failed:\necho one\nls /nonexistent\necho two\n\none\n"):
        terminal.type("echo one\nls /nonexistent\necho two\n")


def test_another_terminal_goes_on_until_ctrl_c(terminal: Terminal) -> None:
    assert terminal.type_and_leave("echo begun\nsleep 60\n", "begun") == "begun\n"
    terminal.ctrl_c()
    with pytest.raises(AssertionError, match="it ended:\ntrue\n"):
        terminal.type_and_leave("true\n", "begun")


def test_a_sample_must_have_been_printed_but_for_numbers() -> None:
    printed = "API http://127.0.0.1:4711/v1\n  [5/142]  ggml.c\nText\n a city\nended"
    assert missing_lines("API http://127.0.0.1:PORT/v1\n[7/99] ggml.c\nText\n a town\n[...]\nended", printed) == []
    assert missing_lines("a  7.5  -", "msg:\n  - '  a  -  3'\n") == []
    assert missing_lines("[7/99] other.c\nended well", printed) == ["[7/99] other.c", "ended well"]
