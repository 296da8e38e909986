# SPDX-License-Identifier: GPL-3.0-or-later
"""Make `ansible_collections.llama_cpp.cluster` importable from here, by Ansible's own loader; no example is timed."""

from __future__ import annotations

from pathlib import Path

from ansible.utils.collection_loader._collection_finder import _AnsibleCollectionFinder
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent

_AnsibleCollectionFinder(paths=[str(ROOT / ".venv" / "collections")])._install()

# On a busy machine any example may take a second.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
