# SPDX-License-Identifier: GPL-3.0-or-later
"""Split a GGUF file as upstream's llama-gguf-split does: `python split_gguf.py MODEL PREFIX PARTS`."""

from __future__ import annotations

import sys
from pathlib import Path

import gguf

SPLITTER = Path(__file__)


def main(model: str, prefix: str, count: int) -> None:
    reader = gguf.GGUFReader(model)
    per_part = -(-len(reader.tensors) // count)
    for number in range(count):
        writer = gguf.GGUFWriter(f"{prefix}-{number + 1:05}-of-{count:05}.gguf", "llama")
        if number == 0:
            for name, entry in reader.fields.items():
                if not name.startswith("GGUF.") and name != "general.architecture":
                    kind = entry.types[0]
                    writer.add_key_value(name, entry.contents(), kind, entry.types[1] if len(entry.types) > 1 else None)
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", count)
        writer.add_int32("split.tensors.count", len(reader.tensors))
        for tensor in reader.tensors[number * per_part : (number + 1) * per_part]:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
