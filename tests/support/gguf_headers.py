# SPDX-License-Identifier: GPL-3.0-or-later
"""Write GGUF files with given metadata and tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gguf

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np


def write_gguf(
    path: Path, architecture: str, metadata: dict[str, Any], tensors: dict[str, np.ndarray[Any, Any]] | None = None
) -> Path:
    """Write a file; numbers that are not negative have 32 bits."""
    writer = gguf.GGUFWriter(path, architecture)
    add: dict[type, Any] = {
        bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32,
        str: writer.add_string, list: writer.add_array,
    }  # fmt: skip
    for key, value in metadata.items():
        add[type(value)](key, value)
    for name, data in (tensors or {}).items():
        writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
