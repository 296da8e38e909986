# SPDX-License-Identifier: GPL-3.0-or-later
"""Write a small GGUF model of random weights, for demonstrations and tests.

The generated text is noise (words in no order), but it takes as long to compute as with a real model of this shape.
The script needs the packages `gguf` and `numpy`. The same arguments give the same bytes.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import gguf
import numpy as np

# Each word is a token, so that the noise can be read. The sentencepiece mark (U+2581) is the space before the word.
WORDS = """
the of and to in is you that it he was for on are as with his they at be this have from or one had by word but not what
all were we when your can said there use an each which she do how their if will up other about out many then them these
so some her would make like him into time has look two more write go see number no way could people my than first water
been call who oil its now find long down day did get come made may part river stone light tree house night morning
winter summer silver golden quiet bright small large round open north south east west wind rain snow cloud ocean
mountain valley forest garden window door table chair paper letter story music dance voice heart hand eye road bridge
tower castle village city island harbour ship sail bird horse wolf bear fox lion apple bread honey salt sugar coffee
knock joke children teacher doctor king queen friend brother sister mother father dream memory secret promise reason
question answer machine engine cluster worker master layer memory thread kernel vector matrix tensor gradient model
""".split()


def vocabulary() -> tuple[list[bytes], list[float], list[int]]:
    """Return tokens, scores and types: the control tokens, all bytes, the printable ASCII characters and the words."""
    kind = gguf.TokenType
    tokens = [b"<unk>", b"<s>", b"</s>"]
    types = [kind.UNKNOWN, kind.CONTROL, kind.CONTROL]
    tokens += [b"<0x%02X>" % i for i in range(256)]
    types += [kind.BYTE] * 256
    space = "\u2581"
    pieces = [space, *(chr(i) for i in range(33, 127))]
    # The tokenizer joins pairs of known pieces, so each prefix of a word must be a piece as well.
    for word in WORDS:
        pieces += [(space + word)[: n + 1] for n in range(1, len(word) + 1)]
    unique = list(dict.fromkeys(pieces))
    tokens += [piece.encode() for piece in unique]
    types += [kind.NORMAL] * len(unique)
    scores = [0.0] * 259 + [float(len(piece)) for piece in unique]
    return tokens, scores, [int(t) for t in types]


def random_q8_0(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Return a (rows, columns) weight as Q8_0 blocks: one float16 scale and 32 int8 each (34 bytes)."""
    blocks = np.empty((rows, columns // 32, 34), dtype=np.uint8)
    scale = np.float16(1.0 / (73.0 * np.sqrt(columns)))  # 73 is the standard deviation of the uniform int8 below
    blocks[:, :, :2] = np.frombuffer(scale.tobytes(), dtype=np.uint8)
    blocks[:, :, 2:] = rng.integers(-127, 128, size=(rows, columns // 32, 32), dtype=np.int8).view(np.uint8)
    return blocks.reshape(rows, columns // 32 * 34)


def add_tokenizer(writer: gguf.GGUFWriter, tokens: list[bytes], scores: list[float], types: list[int]) -> None:
    """Add a tokenizer with the tokens, scores and types that `vocabulary` returns."""
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)


def add_shape(
    writer: gguf.GGUFWriter,
    context: int,
    width: int,
    layers: int,
    feed_forward: int,
    heads: int,
    heads_kv: int,
    n_vocab: int,
) -> None:
    """Add the hyperparameters of a llama-architecture model with heads of size 64."""
    writer.add_context_length(context)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(feed_forward)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads_kv)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(64)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(n_vocab)


def write_model(path: Path, layers: int, width: int, context: int, seed: int, as_floats: bool = False) -> None:
    """Write a llama-architecture model to `path`, which appears only when it is complete."""
    rng = np.random.default_rng(seed)
    heads = width // 64
    heads_kv = max(1, heads // 2)
    feed_forward = width * 11 // 4 // 32 * 32
    tokens, scores, types = vocabulary()

    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    writer = gguf.GGUFWriter(partial, "llama")
    writer.add_name("random-weights")
    writer.add_description("Random weights: the text is noise, the timings are real.")
    add_shape(writer, context, width, layers, feed_forward, heads, heads_kv, len(tokens))
    writer.add_file_type(gguf.LlamaFileType.ALL_F32 if as_floats else gguf.LlamaFileType.MOSTLY_Q8_0)
    add_tokenizer(writer, tokens, scores, types)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)

    def weight(name: str, rows: int, columns: int, silent_rows: list[int] | None = None) -> None:
        data = random_q8_0(rng, rows, columns)
        if silent_rows:
            data[silent_rows] = 0
        if as_floats:
            writer.add_tensor(name, gguf.dequantize(data, gguf.GGMLQuantizationType.Q8_0))
        else:
            writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType.Q8_0)

    def norm(name: str) -> None:
        writer.add_tensor(name, np.ones(width, dtype=np.float32))

    weight("token_embd.weight", len(tokens), width)
    norm("output_norm.weight")
    # Only whole words have a logit other than 0, so that greedy text is words rather than bytes and never ends early.
    words = {("\u2581" + word).encode() for word in WORDS}
    weight("output.weight", len(tokens), width, [i for i, token in enumerate(tokens) if token not in words])
    for i in range(layers):
        norm(f"blk.{i}.attn_norm.weight")
        weight(f"blk.{i}.attn_q.weight", width, width)
        weight(f"blk.{i}.attn_k.weight", heads_kv * 64, width)
        weight(f"blk.{i}.attn_v.weight", heads_kv * 64, width)
        weight(f"blk.{i}.attn_output.weight", width, width)
        norm(f"blk.{i}.ffn_norm.weight")
        weight(f"blk.{i}.ffn_gate.weight", feed_forward, width)
        weight(f"blk.{i}.ffn_up.weight", feed_forward, width)
        weight(f"blk.{i}.ffn_down.weight", width, feed_forward)

    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def main() -> int:
    """Parse the arguments, write the model, and report an error in one sentence."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--layers", type=int, default=8, help="transformer blocks (default: %(default)s)")
    parser.add_argument(
        "--width", type=int, default=512, help="embedding length, multiple of 128 (default: %(default)s)"
    )
    parser.add_argument("--context", type=int, default=2048, help="trained context in tokens (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the random weights (default: %(default)s)")
    parser.add_argument("--floats", action="store_true", help="the same weights as 32-bit floats, not as Q8_0")
    args = parser.parse_args()
    if args.layers < 1 or args.width < 128 or args.width % 128:
        parser.error("--layers must be 1 or more, and --width a multiple of 128.")
    try:
        args.path.parent.mkdir(parents=True, exist_ok=True)
        write_model(args.path, args.layers, args.width, args.context, args.seed, args.floats)
    except OSError as error:
        print(f"The model {args.path} cannot be written: {error.strerror}.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
