#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Put the header of a GGUF model on a host without its weights: from a URL, or from a shape."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gguf_header
short_description: Fetch the header of a GGUF model without its weights
version_added: 0.3.0
description:
  - Fetches the header of a GGUF file at a URL, some MB, and none of its weights. For a part of a split model
    (C(...-00001-of-00003.gguf)) it fetches the headers of all parts, which must be beside it. For a file that was cut
    into pieces, name the first one (C(.gguf.part1of2)).
  - Instead of a URL, it takes the name of a shape, and makes the header of a model of that shape.
  - The files that it leaves have the size of the whole model, but take little room on the disk, because all after
    the header is a hole (a sparse file). So M(llama_cpp.cluster.gguf_info) and
    M(llama_cpp.cluster.split_plan_info) read them like the model. No program can load them.
  - It asks the server for ranges, and after an interruption for the rest. If a server has no ranges, it ends the
    connection after the header.
author: The llama_cpp.cluster team (@llama-cpp-cluster)
options:
  url:
    description: The URL of the model, with C(http) or C(https). Exactly one of O(url) and O(shape) is required.
    type: str
  shape:
    description: The shape of a common model, in Q4_0 or, for gpt-oss, in MXFP4. The page on sizes lists them
      (docs/how-to/size.md).
    type: str
    choices: [3B, 8B, 14B, 32B, 70B, gpt-oss-20b, Qwen3-30B-A3B, GLM-4.5-Air, gpt-oss-120b, Qwen3-235B-A22B,
      DeepSeek-V3, Kimi-K2]
  dest:
    description: The folder for the files. The module makes it if it is missing, and overwrites files in it.
    type: path
    required: true
  timeout:
    description: The time limit for all headers, in seconds.
    type: int
    default: 300
attributes:
  check_mode:
    description: Fetches and writes nothing.
    support: full
  diff_mode:
    description: There is nothing to show.
    support: none
  idempotent:
    description: The module always fetches the header.
    support: none
notes:
  - Needs Python 3.8 or newer on the host, and only Python's standard library.
extends_documentation_fragment:
  - llama_cpp.cluster.download
"""

EXAMPLES = r"""
- name: Fetch the header of the model
  llama_cpp.cluster.gguf_header:
    url: https://models.example.com/model.gguf
    dest: /var/tmp/header
  register: header

- name: Read what the model needs
  llama_cpp.cluster.gguf_info:
    path: "{{ header.path }}"
"""

RETURN = r"""
path:
  description: The file with the header; for a split model, that of the first part.
  returned: success
  type: str
fetched_bytes:
  description: How many bytes of the model have arrived; 0 for a shape.
  returned: success
  type: int
"""

from pathlib import Path
from posixpath import basename
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from ansible_collections.llama_cpp.cluster.plugins.module_utils._files.beginning import Beginning
from ansible_collections.llama_cpp.cluster.plugins.module_utils._files.quiet import PATIENCE, QuietModule, limits_of
from ansible_collections.llama_cpp.cluster.plugins.module_utils._files.record import open_no_link, reason
from ansible_collections.llama_cpp.cluster.plugins.module_utils._files.web import (
    DownloadError,
    Limits,
    check_url,
    shown,
)
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.header import (
    MAX_COUNT,
    GgufError,
    Header,
    header_of,
    part_names,
    piece_names,
    read_model,
)
from ansible_collections.llama_cpp.cluster.plugins.module_utils._gguf.shapes import SHAPES, encoded


def _name_in(url: str) -> str:
    return basename(unquote(urlsplit(url).path))


def parts_of(url: str) -> list[tuple[str, str]]:
    """Return name and URL of each file of a model from the URL of one. Raises DownloadError and GgufError."""
    check_url(url)
    whole = urlsplit(url)
    folder, name = whole.path.rpartition("/")[0], _name_in(url)
    if not name.endswith(".gguf"):
        return [("model.gguf", url)]
    names = part_names(name)
    if len(names) == 1:
        return [(name, url)]
    return [(part, urlunsplit(whole._replace(path=f"{folder}/{quote(part)}"))) for part in names]


def fetch(url: str, path: Path, limits: Limits, token: str | None) -> int:
    """Write the header at a URL, and a hole of the rest, into a file; return how many bytes have arrived."""
    with open(str(path), "w+b", opener=open_no_link) as store:
        beginning = Beginning(url, limits, token, store)

        # A piece is shorter than the model, whose size only the header tells.
        is_piece = bool(piece_names(_name_in(url)))

        def read(stream: Beginning) -> Header:
            return header_of(stream, MAX_COUNT if is_piece or stream.total is None else stream.total)

        try:
            header = beginning.use(read)
        except GgufError as error:
            raise GgufError(
                f"{shown(url)} is not a complete GGUF model: {error}; give the URL of a GGUF file."
            ) from None
        size = header.end_bytes if is_piece else beginning.total or header.end_bytes
        if size:
            store.truncate(header.start_bytes)
            store.truncate(size)
    return beginning.arrived


def get(params: dict[str, Any]) -> dict[str, Any]:
    """Put the header where it is wanted; return the result."""
    folder = Path(params["dest"])
    folder.mkdir(parents=True, exist_ok=True)
    if params["shape"]:
        head, size = encoded(next(shape for shape in SHAPES if shape.name == params["shape"]))
        path = folder / "model.gguf"
        with open(str(path), "wb", opener=open_no_link) as stream:
            stream.write(head)
            stream.truncate(size)
        return {"path": str(path), "fetched_bytes": 0}
    limits = limits_of(params, "allow it more time")
    parts = parts_of(params["url"])
    arrived = sum(fetch(url, folder / name, limits, params["token"] or None) for name, url in parts)
    read_model(folder / parts[0][0])  # whether they are the parts of one model
    return {"path": str(folder / parts[0][0]), "fetched_bytes": arrived}


def main() -> None:
    """Run the module."""
    module = QuietModule(
        argument_spec={
            "url": {"type": "str"},
            "shape": {"type": "str", "choices": [shape.name for shape in SHAPES]},
            "dest": {"type": "path", "required": True},
            "timeout": {"type": "int", "default": 300},
            **PATIENCE,
        },
        required_one_of=[("url", "shape")],
        mutually_exclusive=[("url", "shape")],
        supports_check_mode=True,
    )
    folder = Path(module.params["dest"])
    try:
        if module.check_mode:
            names = [name for name, _url in parts_of(module.params["url"])] if module.params["url"] else ["model.gguf"]
            result = {"path": str(folder / names[0]), "fetched_bytes": 0}
        else:
            result = get(module.params)
    except DownloadError as error:
        module.fail_json(msg=str(error))
    except GgufError as error:
        module.fail_json(msg=str(error).replace(f"{folder}/", ""))
    except OSError as error:
        module.fail_json(msg=reason(error, folder))
    module.exit_json(changed=True, **result)


if __name__ == "__main__":
    main()
