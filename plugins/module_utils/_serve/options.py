# SPDX-License-Identifier: GPL-3.0-or-later
"""Private: which options of llama-server a user may add to those that the collection sets, and why not the others.

The tables hold each spelling in `llama-server --help` of the pinned llama.cpp once. An option that is in no table is
refused. tests/integration/test_server_options.py compares the tables with that help, so a new pin asks for each new
option.
"""

from __future__ import annotations

import re
from typing import Iterable, Mapping

VARIABLE = "llama_server_extra_args"

# The options that role llama_server sets, with all their spellings, and its variable for them if it has one.
OWN = {
    "-m --model": "gguf_model_path",
    "-a --alias": "llama_server_alias",
    "--host": "llama_server_bind_address",
    "--port": "llama_server_port",
    "-np --parallel": "llama_server_parallel",
    "-c --ctx-size": "llama_server_ctx_size",
    "-t --threads": "inference_threads",
    "--rpc": "inference_endpoints",
    "-dev --device": "inference_endpoints",
    "-ts --tensor-split": "inference_tensor_split",
    "-ngl --gpu-layers --n-gpu-layers": "",
    "-fit --fit": "",
    "-cram --cache-ram": "llama_server_cache_ram",
    "-mm --mmproj": "llama_server_mmproj",
    "--mmproj-offload --no-mmproj-offload": "",
    "--video-ffmpeg-dir": "",
    "--api-key": "llama_server_api_keys",
    "--api-key-file": "llama_server_api_keys",
    "--spec-type": "llama_server_spec_type",
    "--spec-default": "llama_server_spec_type",
    "-md --model-draft --spec-draft-model": "llama_server_draft_model",
    "-devd --device-draft --spec-draft-device": "",
    "--spec-draft-n-max": "llama_server_spec_draft_n_max",
    "--spec-ngram-simple-size-m": "llama_server_spec_draft_n_max",
    "--spec-ngram-map-k-size-m": "llama_server_spec_draft_n_max",
    "--spec-ngram-map-k4v-size-m": "llama_server_spec_draft_n_max",
    "--spec-ngram-mod-n-max": "llama_server_spec_draft_n_max",
    "--metrics": "",
    "--cors-origins": "",
    "--ui --webui --no-ui --no-webui": "llama_server_ui",
    "--path": "llama_server_ui",
}

# Why an option is refused, as the end of a sentence that begins with the option and "which", and the spellings.
REFUSED = {
    "could write prompts and answers to a log": """
        -v --verbose --log-verbose -lv --verbosity --log-verbosity --log-file --log-prompts-dir
    """,
    "changes the log, whose lines this collection reads": """
        --log-disable --log-colors --log-jsonl --no-log-jsonl --log-prefix --no-log-prefix --log-timestamps
        --no-log-timestamps
    """,
    "fetches files from the network, and the API fetches nothing": """
        -mu --model-url -dr --docker-repo -hf -hfr --hf-repo -hff --hf-file -hft --hf-token --spec-draft-hf -hfd -hfrd
        --hf-repo-draft -mmu --mmproj-url --mmproj-auto --embd-gemma-default --fim-qwen-1.5b-default
        --fim-qwen-3b-default --fim-qwen-7b-default --fim-qwen-7b-spec --fim-qwen-14b-spec --fim-qwen-30b-default
        --gpt-oss-20b-default --gpt-oss-120b-default --vision-gemma-4b-default --vision-gemma-12b-default
    """,
    "changes where pictures are computed, and the API computes them on the master": "-mmdev --mmproj-device",
    "is for video, for which llama-server would run ffmpeg": "--video-fps --video-timestamp-interval",
    "lets clients run tools, and the API runs none": """
        --tools --tools-runtime -ag --agent --mcp-servers-config --mcp-servers-json --ui-mcp-proxy --webui-mcp-proxy
    """,
    "reads or writes files for clients": """
        --media-path --slot-save-path -lcs --lookup-cache-static -lcd --lookup-cache-dynamic
    """,
    "lets clients change settings of the API": "--props",
    "serves several models, and the API serves one": "--models-dir --models-preset --models-max --models-autoload",
    "has known holes in some versions": "--sleep-idle-seconds",
    "lets another program listen on the port of the API": "--reuse-port",
    "turns on TLS, which nothing else of this collection speaks with the API": "--ssl-key-file --ssl-cert-file",
    "hides from the service whether llama-server works": "--api-prefix --no-slots",
    "keeps copies of experts on workers, which nobody has tested over RPC": "--moe-cache-mib",
    "accepts drafted tokens that the model would not generate": "--spec-synth-len --spec-synth-rates",
    "ends llama-server instead of serving": """
        -h --help --usage --version -cl --cache-list --completion-bash --list-devices
    """,
    "llama.cpp has removed": """
        --draft --draft-n --draft-max --draft-min --draft-n-min --spec-ngram-size-n --spec-ngram-size-m
        --spec-ngram-min-hits
    """,
}

# What is passed on, by subject.
ALLOWED = {
    "processors": """
        -tb --threads-batch -C --cpu-mask -Cr --cpu-range --cpu-strict --prio --poll -Cb --cpu-mask-batch -Crb
        --cpu-range-batch --cpu-strict-batch --prio-batch --poll-batch --numa --threads-http
    """,
    "context and its cache": """
        -b --batch-size -ub --ubatch-size --keep --swa-full -fa --flash-attn -kvo --kv-offload -nkvo --no-kv-offload
        -ctk --cache-type-k -ctv --cache-type-v -dt --defrag-thold --kv-unified-per-slot -ctxcp --ctx-checkpoints
        --swa-checkpoints -cms --checkpoint-min-step -kvu --kv-unified -no-kvu --no-kv-unified --cache-idle-slots
        --no-cache-idle-slots --context-shift --no-context-shift --cache-prompt --no-cache-prompt
        --cache-reuse
    """,
    "position encoding": """
        --rope-scaling --rope-scale --rope-freq-base --rope-freq-scale --yarn-orig-ctx --yarn-ext-factor
        --yarn-attn-factor --yarn-beta-slow --yarn-beta-fast
    """,
    "weights, and files beside the model that are read at the start": """
        --repack -nr --no-repack --no-host -lm --load-mode -lzm --lazy-mode -ot --override-tensor -cmoe --cpu-moe -ncmoe
        --n-cpu-moe -ncffn --n-cpu-ffn -sm --split-mode -mg --main-gpu -fitt --fit-target -fitc --fit-ctx
        --check-tensors --override-kv --op-offload --no-op-offload --warmup --no-warmup --lora --lora-scaled
        --lora-init-without-apply --control-vector --control-vector-scaled --control-vector-layer-range --grammar-file
        -jf --json-schema-file --ui-config-file --webui-config-file
    """,
    "how large pictures may be": """
        --image-min-tokens --image-max-tokens --mtmd-batch-max-tokens
    """,
    "what clients get by default": """
        -n --predict --n-predict -e --escape --no-escape -r --reverse-prompt -sp --special --spm-infill --samplers -s
        --seed --sampler-seq --sampling-seq --ignore-eos --temp --temperature --top-k --top-p --min-p --top-nsigma
        --top-n-sigma --xtc-probability --xtc-threshold --typical --typical-p --repeat-last-n --repeat-penalty
        --presence-penalty --frequency-penalty --dry-multiplier --dry-base --dry-allowed-length --dry-penalty-last-n
        --dry-sequence-breaker --adaptive-target --adaptive-decay --dynatemp-range --dynatemp-exp --mirostat
        --mirostat-lr --mirostat-ent -l --logit-bias --grammar -j --json-schema -bs --backend-sampling
    """,
    "chats, embeddings and ranks": """
        -rea --reasoning --embedding --embeddings --chat-template-file
        --jinja --no-jinja --reasoning-format --reasoning-effort --reasoning-budget --reasoning-budget-message
        --reasoning-preserve --no-reasoning-preserve --chat-template --chat-template-kwargs --skip-chat-parsing
        --no-skip-chat-parsing --prefill-assistant --no-prefill-assistant --pooling --embd-normalize --rerank
        --reranking
    """,
    "drafts": """
        --spec-draft-type-k -ctkd --cache-type-k-draft --spec-draft-type-v -ctvd --cache-type-v-draft
        --spec-draft-threads -td --threads-draft --spec-draft-threads-batch -tbd --threads-batch-draft
        --spec-draft-cpu-mask -Cd --cpu-mask-draft --spec-draft-cpu-range -Crd --cpu-range-draft --spec-draft-cpu-strict
        --cpu-strict-draft --spec-draft-prio --prio-draft --spec-draft-poll --poll-draft --spec-draft-cpu-mask-batch
        -Cbd --cpu-mask-batch-draft --spec-draft-cpu-strict-batch --cpu-strict-batch-draft --spec-draft-prio-batch
        --prio-batch-draft --spec-draft-poll-batch --poll-batch-draft --spec-draft-override-tensor -otd
        --override-tensor-draft --spec-draft-cpu-moe -cmoed --cpu-moe-draft --spec-draft-n-cpu-moe --spec-draft-ncmoe
        -ncmoed --n-cpu-moe-draft --spec-draft-n-min --spec-draft-p-split --draft-p-split --spec-draft-p-min
        --draft-p-min --spec-draft-backend-sampling --no-spec-draft-backend-sampling --spec-draft-sampling
        --spec-draft-ngl -ngld
        --gpu-layers-draft --n-gpu-layers-draft --spec-ngram-mod-n-min --spec-ngram-mod-n-match
        --spec-ngram-simple-size-n --spec-ngram-simple-min-hits --spec-ngram-map-k-size-n --spec-ngram-map-k-min-hits
        --spec-ngram-map-k4v-size-n --spec-ngram-map-k4v-min-hits
    """,
    "requests and slots": """
        -to --timeout --sse-ping-interval -cb --cont-batching -nocb --no-cont-batching --turns --slots -sps
        --slot-prompt-similarity --tags --cors-methods --cors-headers --cors-credentials --no-cors-credentials
        --ui-config --webui-config --perf --no-perf
    """,
    "off, as it is without them": """
        --offline -no-ag --no-agent --no-ui-mcp-proxy --no-webui-mcp-proxy --no-models-autoload --no-mmproj
        --no-mmproj-auto
    """,
}

# Options of earlier versions that a user may still build (llama_cpp_version), which the pinned one does not have.
EARLIER = "--mlock --mmap --no-mmap -dio --direct-io -ndio --no-direct-io"

UNKNOWN = "which the llama.cpp version that this collection pins does not have, so nobody has judged it: take it out."
JOINED = "which is one word with its value, and llama.cpp takes two: give the value as the next item of the list."
# Such a word counts as an option wherever it stands, because whether an option has a value depends on the version. No
# option begins in another way; -1 and -.5 are values.
OPTION = r"^-[^0-9.]"


def endings(own: Mapping[str, str] | None = None, setter: str = "the role") -> dict[str, str]:
    """Return, for each known spelling, the end of the sentence that refuses it; it is empty for what is allowed.

    `own` holds the spellings that `setter` sets itself, and what to use instead; without it, those of the role.
    """
    allowed = " ".join([*ALLOWED.values(), *OWN, EARLIER])
    return {
        **dict.fromkeys(allowed.split(), ""),
        **{
            option: f"which {setter} sets itself: {f'use {instead}' if instead else 'take it out'}."
            for options, instead in (OWN if own is None else own).items()
            for option in options.split()
        },
        **{option: f"which {why}: take it out." for why, options in REFUSED.items() for option in options.split()},
    }


def refusals(
    extra_args: Iterable[object], variable: str = VARIABLE, known: Mapping[str, str] | None = None
) -> list[str]:
    """Return a sentence for each word that is no option to add; `known` is what `endings` returned."""
    known = endings() if known is None else known
    found = []
    for word in map(str, extra_args):
        if not re.match(OPTION, word):
            continue
        written = re.split(r"[=\s]", word, maxsplit=1)[0]
        # llama.cpp accepts --top_k as --top-k.
        name = written.replace("_", "-") if written.startswith("--") else written
        ending = known.get(name, UNKNOWN) or (JOINED if written != word else "")
        if ending:
            found.append(f"{variable} holds {name}, {ending}")
    return found
