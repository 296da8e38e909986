# SPDX-License-Identifier: GPL-3.0-or-later
"""Write a small projector of random weights, with which a text model takes pictures, and pictures for it."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import TYPE_CHECKING

import gguf
import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

# A picture of this projector is IMAGE pixels wide and high, and each patch of it becomes a token.
IMAGE, PATCH = 32, 8
TOKENS = (IMAGE // PATCH) ** 2
WIDTH, INNER, LAYERS = 32, 64, 2


def write_projector(
    path: Path, projection: int, *, image: int = IMAGE, width: int = WIDTH, inner: int = INNER, says: int | None = None
) -> Path:
    """Write a projector for a model whose embeddings have `projection` numbers; `says` is what its header says."""
    random = np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", "mlp")
    numbers = {
        "embedding_length": width,
        "feed_forward_length": inner,
        "block_count": LAYERS,
        "projection_dim": projection if says is None else says,
        "attention.head_count": 4,
        "image_size": image,
        "patch_size": PATCH,
    }
    for name, number in numbers.items():
        writer.add_uint32(f"clip.vision.{name}", number)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    for name in ("image_mean", "image_std"):
        writer.add_array(f"clip.vision.{name}", [0.5, 0.5, 0.5])
    shapes: dict[str, tuple[int, ...]] = {
        "v.patch_embd.weight": (width, 3, PATCH, PATCH),
        "v.position_embd.weight": ((image // PATCH) ** 2, width),
        "mm.0.weight": (width, width),
        "mm.0.bias": (width,),
        "mm.2.weight": (projection, width),
        "mm.2.bias": (projection,),
    }
    for layer in range(LAYERS):
        of = f"v.blk.{layer}."
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            shapes[f"{of}{name}.weight"] = (width, width)
        for name in ("ln1", "ln2"):
            shapes[f"{of}{name}.weight"] = shapes[f"{of}{name}.bias"] = (width,)
        shapes[f"{of}ffn_up.weight"], shapes[f"{of}ffn_down.weight"] = (inner, width), (width, inner)
    for name, shape in shapes.items():
        writer.add_tensor(name, (random.standard_normal(shape) * 0.3).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def picture(red: int, green: int, blue: int, side: int = IMAGE) -> str:
    """Return a PNG of one colour, as a data: URL."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\0" + bytes((red, green, blue)) * side) * side
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"
