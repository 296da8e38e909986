# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the Helm chart from role kubernetes, so that its manifests have one source.

The role renders its manifests with marker values that occur nowhere else. Where a marker appears in a manifest, the
chart gets the Helm expression that puts a user's value there. Values of the chart have the names of the role's
variables. `.venv/bin/python scripts/chart.py` writes the chart. With --check it writes nothing, and exits with 1 if the
chart would change.
"""

from __future__ import annotations

import argparse
import difflib
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from ansible_collections.llama_cpp.cluster.plugins.module_utils._serve import options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "charts/llama-cluster"
LICENCE = "SPDX-License-Identifier: GPL-3.0-or-later"
MADE = "Written by scripts/chart.py from role kubernetes."
PODS, GATEWAY = (f"marker.example.com/{name}@sha256:{letter * 64}" for name, letter in (("pods", "e"), ("door", "f")))
NAME, SPACE, ALIAS, CLIENT = "marker-name", "marker-space", "marker-alias", "marker-client"
KEY, GROUP_KEY, CLIENT_KEY = (f"marker-{name}-0123456789" for name in ("key", "group", "client"))
EXTRA, ORIGIN = "marker-extra", "https://marker.example.org"
REPLICAS, SURGE, SLOTS, CONTEXT = 17, 19, 251, 7021
LAST_GROUP, LAST_OF_GATEWAY = REPLICAS + SURGE - 1, REPLICAS - 1

# The role's variables. The numbers differ from all other numbers in the manifests, and from sums of them.
MARKERS: dict[str, Any] = {
    "kubernetes_image": PODS,
    "kubernetes_replicas": REPLICAS,
    "kubernetes_size": 13,
    "kubernetes_max_unavailable": 23,
    "kubernetes_max_surge": SURGE,
    "kubernetes_worker_cpu": 7003,
    "kubernetes_worker_memory": "7001Gi",
    "kubernetes_leader_cpu": 7004,
    "kubernetes_leader_memory": "7002Gi",
    "kubernetes_node_selector": {"marker": "node"},
    "kubernetes_model_volume": {"marker": "model"},
    "kubernetes_cache_volume": {"marker": "cache"},
    "kubernetes_trusted_peers": [{"marker": "trusted"}],
    "kubernetes_monitoring_peers": [{"marker": "monitoring"}],
    "kubernetes_gateway_image": GATEWAY,
    "kubernetes_gateway_tls_secret": "marker-secret",
    "llama_server_model_path": "/marker-models/marker-file.gguf",
    "llama_server_alias": ALIAS,
    "llama_server_port": 7010,
    "llama_server_api_keys": [KEY],
    "llama_server_parallel": SLOTS,
    "llama_server_ctx_size": CONTEXT,
    "llama_server_ubatch_size": 7027,
    "llama_server_threads": 7023,
    "llama_server_tensor_split": [7028, 7029],
    "llama_server_cache_ram": 7022,
    "llama_server_cache_reuse": 7024,
    "llama_server_chat_template_file": "/marker-models/marker.jinja",
    "llama_server_lora": ["/marker-models/marker-adapter.gguf"],
    "llama_server_embeddings": False,
    "llama_server_spec_type": "draft-simple",
    "llama_server_draft_model": "/marker-models/marker-draft.gguf",
    "llama_server_spec_draft_n_max": 997,
    "llama_server_extra_args": [EXTRA],
    "llama_server_reasoning": "on",
    "llama_server_stall_timeout": 7025,
    "llama_server_drain_timeout": 7026,
    "llama_gateway_tls_certificate": "-----BEGIN CERTIFICATE-----marker",
    "llama_gateway_tls_key": "-----BEGIN PRIVATE KEY-----marker",
    "llama_gateway_group_key": GROUP_KEY,
    "llama_gateway_api_keys": [{"name": CLIENT, "key": CLIENT_KEY, "expires": "2001-02-03", "requests": 7030}],
    "llama_gateway_requests_per_key": 7031,
    "llama_gateway_connections_per_address": 2997,
    "llama_gateway_queue_length": 7032,
    "llama_gateway_queue_timeout": 7033,
    "llama_gateway_request_kib": 7034,
    "llama_gateway_answer_timeout": 7035,
    "llama_gateway_allowed_origins": [ORIGIN],
    "llama_gateway_conversation_header": "X-Marker",
}
NUMBERS = {name: it for name, it in MARKERS.items() if isinstance(it, int) and not isinstance(it, bool)}


def value(name: str) -> str:
    """Return the Helm expression of a value; $ is the same inside a loop."""
    return f"$.Values.{name}"


def number(name: str) -> str:
    """Return the Helm expression of an integer, which may be a float in a file of values."""
    return f"int64 {value(name)}"


# The Helm conditions that change lines of manifests, and the role's variables for which each is true or false.
# The gateway comes first, because without it there is no configuration.
NO_TEXT, NO_SECRET = (
    {"llama_gateway_tls_certificate": "", "llama_gateway_tls_key": ""},
    {"kubernetes_gateway_tls_secret": ""},
)
SWITCHES: dict[str, dict[bool, dict[str, Any]]] = {
    value("kubernetes_gateway_image"): {True: {}, False: {"kubernetes_gateway_image": "", **NO_TEXT, **NO_SECRET}},
    value("kubernetes_monitoring_peers"): {True: {}, False: {"kubernetes_monitoring_peers": []}},
    f"or {value('llama_gateway_tls_certificate')} {value('kubernetes_gateway_tls_secret')}": {
        True: {},
        False: {**NO_TEXT, **NO_SECRET},
    },
    value("kubernetes_gateway_tls_secret"): {True: NO_TEXT, False: NO_SECRET},
}


JSON = "| toRawJson"
# Not in values.yaml: Helm would merge a user's dictionary into this default, but it must replace the default.
CACHE = '(dict "emptyDir" dict)'
PORT, CONTEXT_OF_ALL = (
    number("llama_server_port"),
    f"mul ({number('llama_server_parallel')}) ({number('llama_server_ctx_size')})",
)
KEYS = 'include "llama.api_keys" $'
# Markers that are a whole scalar, list or dictionary, each with the expression that replaces it as JSON.
WHOLE: list[tuple[Any, str]] = [
    *(
        (MARKERS[name], f"{value(name)} {JSON}")
        for name in (
            "kubernetes_image",
            "kubernetes_gateway_image",
            "kubernetes_gateway_tls_secret",
            "kubernetes_worker_memory",
            "kubernetes_leader_memory",
            "kubernetes_node_selector",
            "kubernetes_trusted_peers",
            "kubernetes_monitoring_peers",
            "llama_server_model_path",
            "llama_server_chat_template_file",
            "llama_server_reasoning",
        )
    ),
    *((it, number(name)) for name, it in NUMBERS.items()),
    *((str(it), f"{number(name)} | toString {JSON}") for name, it in NUMBERS.items()),
    (NAME, f'include "llama.name" $ {JSON}'),
    (SPACE, f"$.Release.Namespace {JSON}"),
    (ALIAS, f'include "llama.alias" $ {JSON}'),
    (str(LAST_GROUP), f"$group | toString {JSON}"),
    ({"marker": "model", "name": "model"}, f'include "llama.volume" (list "model" {value("kubernetes_model_volume")})'),
    (
        {"marker": "cache", "name": "cache"},
        f'include "llama.volume" (list "cache" (default {CACHE} {value("kubernetes_cache_volume")}))',
    ),
    (MARKERS["llama_server_lora"][0], f'join "," {value("llama_server_lora")} {JSON}'),
    (MARKERS["llama_server_tensor_split"], f'include "llama.list" {value("llama_server_tensor_split")}'),
    ("7028,7029", f'join "," {value("llama_server_tensor_split")} {JSON}'),
    ("/marker-models", f"dir {value('llama_server_model_path')} {JSON}"),
    (7001 << 30, f'include "llama.bytes" {value("kubernetes_worker_memory")}'),
    (7002 << 30, f'include "llama.bytes" {value("kubernetes_leader_memory")}'),
    (7011, f"add1 ({PORT})"),
    ("/etc/llama_server/7010.keys", f'printf "/etc/llama_server/%d.keys" ({PORT}) {JSON}'),
    ("7010.keys", f'printf "%d.keys" ({PORT}) {JSON}'),
    (
        "sleep 5; kill -USR1 1; sleep 7026",
        f'printf "sleep 5; kill -USR1 1; sleep %d" ({number("llama_server_drain_timeout")}) {JSON}',
    ),
    (7026 + 30, f"add 30 ({number('llama_server_drain_timeout')})"),
    (7022 << 20, f"mul 1048576 ({number('llama_server_cache_ram')})"),
    (SLOTS * CONTEXT, CONTEXT_OF_ALL),
    (str(SLOTS * CONTEXT), f"{CONTEXT_OF_ALL} | toString {JSON}"),
    (f"{KEY}\n", f'printf "%s\\n" ({KEYS}) {JSON}'),
    (KEY, f'first (splitList "\\n" ({KEYS})) {JSON}'),
]
# Options of llama-server that the chart has only if their value is set.
OPTIONAL = {
    "--tensor-split": "llama_server_tensor_split",
    "--threads": "llama_server_threads",
    "--ubatch-size": "llama_server_ubatch_size",
    "--cache-reuse": "llama_server_cache_reuse",
    "--chat-template-file": "llama_server_chat_template_file",
    "--lora": "llama_server_lora",
}
# The options of a draft and a user's additional options. The option of embeddings may come before them.
DRAFT = re.compile(rf', "--spec-type".+?"none", "{EXTRA}"')
# Manifests that the chart has only if a value is set. OF_GROUP matches the names of those of each group.
CONDITIONAL = {
    f"Secret {NAME}-keys": KEYS,
    f"NetworkPolicy {NAME}-door": value("kubernetes_trusted_peers"),
}
OF_GROUP = re.compile(rf"({NAME}-[a-z]+-)(\d+)")
GROUPS = f"add ({number('kubernetes_replicas')}) ({number('kubernetes_max_surge')})"
# Texts that are files of the chart, and checksums of them.
TEXTS = {
    "pod.json": f'include "llama.pod" $ {JSON}',
    "haproxy.cfg": f'include "llama.haproxy" $ {JSON}',
    "keys.map": f'include "llama.keys" $ {JSON}',
    "models.map": f'include "llama.models" $ {JSON}',
    "door.pem": f'include "llama.pem" $ {JSON}',
    "wait.lua": f'include "llama.lua" $ {JSON}',
    "llama_cpp.json": f'include "llama.dashboard" $ {JSON}',
    "checksum/settings": f'include "llama.pod" $ | sha256sum {JSON}',
    "checksum/configuration": 'printf "%s%s%s%s%s" (include "llama.keys" $) (include "llama.models" $) '
    f'(include "llama.haproxy" $) (include "llama.pem" $) (include "llama.lua" $) | sha256sum {JSON}',
}
# In HAProxy's configuration: lines that Helm repeats for each group or client, or writes only if a value is set; and
# parts of lines that it replaces.
GATEWAY_GROUPS = f"range $group := until (int {value('kubernetes_replicas')})"
GROUPS_BEHIND, SLOTS_OF_ONE = number("kubernetes_replicas"), number("llama_server_parallel")
LINES: list[tuple[str, str]] = [
    (f"{NAME}-{LAST_OF_GATEWAY}", GATEWAY_GROUPS),
    ("981158400", f"range {value('llama_gateway_api_keys')} }}}}{{{{ if .expires"),
    ("7030", f"range {value('llama_gateway_api_keys')} }}}}{{{{ if .requests"),
    ("txn.origin", f"if {value('llama_gateway_allowed_origins')}"),
]
PARTS: list[tuple[str, str]] = [
    (rf"{NAME}-(group-)?{LAST_OF_GATEWAY}\b", r'{{ include "llama.name" $ }}-\1{{ $group }}'),
    (rf"\b(eq|id) {REPLICAS}\b", r"\1 {{ add1 $group }}"),
    (rf"\b(maxconn|weight) {SLOTS}\b", rf"\1 {{{{ {number('llama_server_parallel')} }}}}"),
    (
        rf"\b{REPLICAS * SLOTS + 7032}\b",
        f"{{{{ add ({number('llama_gateway_queue_length')}) (mul ({GROUPS_BEHIND}) ({SLOTS_OF_ONE})) }}}}",
    ),
    (rf"\b{7034 * 1024 + 65536}\b", f"{{{{ add 65536 (mul 1024 ({number('llama_gateway_request_kib')})) }}}}"),
    (rf"\b{7034 * 1024}\b", f"{{{{ mul 1024 ({number('llama_gateway_request_kib')}) }}}}"),
    *(
        (rf"(?<!\d){it}(?!\d)", f"{{{{ {number(name)} }}}}")
        for name, it in NUMBERS.items()
        if name.startswith("llama_gateway")
    ),
    ("7010", f"{{{{ {PORT} }}}}"),
    ("7011", f"{{{{ add1 ({PORT}) }}}}"),
    ("981158400", '{{ (toDate "2006-01-02 -0700" (printf "%s +0000" .expires)).Unix }}'),
    ("7030", "{{ int64 .requests }}"),
    (CLIENT, "{{ .name }}"),
    (ALIAS, '{{ include "llama.alias" $ }}'),
    (GROUP_KEY, f"{{{{ {value('llama_gateway_group_key')} }}}}"),
    ("X-Marker", f"{{{{ {value('llama_gateway_conversation_header')} }}}}"),
    ("x-marker", f"{{{{ lower {value('llama_gateway_conversation_header')} }}}}"),
    (ORIGIN, f'{{{{ join " " {value("llama_gateway_allowed_origins")} }}}}'),
]
_LEFT = re.compile(r"[Mm]arker|\b70[0-3]\d\b|ZZ")
# What the schema has in addition to the roles' argument specifications. The roles check these ranges in rules.
_KEY = "^[A-Za-z0-9._~+/=-]{16,}$"
_QUANTITY, _IMAGE = "^[1-9][0-9]*[MGT]i$", "^[a-z0-9]+[A-Za-z0-9._:/-]*@sha256:[0-9a-f]{64}$"
REQUIRED = (
    "kubernetes_image",
    "kubernetes_worker_cpu",
    "kubernetes_worker_memory",
    "kubernetes_model_volume",
    "llama_server_model_path",
)
# Values that values.yaml leaves out, because an empty list means something else.
DERIVED = {"llama_server_api_keys": "by default the key of the gateway, llama_gateway_group_key"}
RANGES: dict[str, dict[str, Any]] = {
    "kubernetes_image": {"pattern": _IMAGE},
    "kubernetes_gateway_image": {"pattern": f"^$|{_IMAGE}"},
    "kubernetes_gateway_tls_secret": {"pattern": "^([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)?$"},
    "kubernetes_replicas": {"minimum": 1},
    "kubernetes_size": {"minimum": 2, "maximum": 16},
    "kubernetes_max_unavailable": {"minimum": 0},
    "kubernetes_max_surge": {"minimum": 0},
    "kubernetes_worker_cpu": {"minimum": 1},
    "kubernetes_worker_memory": {"pattern": _QUANTITY},
    "kubernetes_leader_cpu": {"minimum": 1},
    "kubernetes_leader_memory": {"pattern": _QUANTITY},
    "kubernetes_model_volume": {"minProperties": 1},
    "llama_server_model_path": {"pattern": "^/[A-Za-z0-9._/+-]+$"},
    "llama_server_alias": {"pattern": "^[A-Za-z0-9._:/+-]*$"},
    "llama_server_port": {"minimum": 1, "maximum": 65534},
    "llama_server_parallel": {"minimum": 1, "maximum": 256},
    "llama_server_ctx_size": {"minimum": 64},
    "llama_server_ubatch_size": {"minimum": 0},
    "llama_server_threads": {"minimum": 0},
    "llama_server_tensor_split": {"items": {"type": "number", "minimum": 0}},
    "llama_server_cache_ram": {"minimum": 0},
    "llama_server_cache_reuse": {"minimum": 0},
    "llama_server_chat_template_file": {"pattern": "^[A-Za-z0-9._/+-]*$"},
    "llama_server_lora": {"items": {"type": "string", "pattern": "^/[A-Za-z0-9._/+-]+$"}},
    "llama_server_draft_model": {"pattern": "^(/[A-Za-z0-9._/+-]+)?$"},
    "llama_server_spec_draft_n_max": {"minimum": 0, "maximum": 1024},
    "llama_server_stall_timeout": {"minimum": 30},
    "llama_server_drain_timeout": {"minimum": 0},
    "llama_server_api_keys": {"items": {"type": "string", "pattern": _KEY}},
    "llama_gateway_tls_certificate": {"pattern": "^$|-----BEGIN CERTIFICATE-----"},
    "llama_gateway_tls_key": {"pattern": "^$|-----BEGIN [A-Z ]*PRIVATE KEY-----"},
    "llama_gateway_group_key": {"pattern": f"^$|{_KEY}"},
    "llama_gateway_requests_per_key": {"minimum": 1},
    "llama_gateway_connections_per_address": {"minimum": 64, "maximum": 3000},
    "llama_gateway_queue_length": {"minimum": 0},
    "llama_gateway_queue_timeout": {"minimum": 1},
    "llama_gateway_request_kib": {"minimum": 16, "maximum": 65536},
    "llama_gateway_answer_timeout": {"minimum": 1},
    "llama_gateway_allowed_origins": {"items": {"type": "string", "pattern": "^https?://[A-Za-z0-9.:-]+$"}},
    "llama_gateway_conversation_header": {"pattern": "^[A-Za-z0-9-]+$"},
    "name": {"pattern": "^[A-Za-z0-9._-]{1,64}$"},
    "key": {"pattern": _KEY},
    "expires": {"pattern": "^20[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])$"},
    "requests": {"minimum": 1},
}
GIVEN, NONE = {"minLength": 1}, {"maxLength": 0}


def implied(condition: dict[str, Any], consequence: dict[str, Any]) -> dict[str, Any]:
    """Return a schema: values that meet the condition must meet the consequence as well."""
    return {"if": {"properties": condition}, "then": {"properties": consequence}}


# Rules for several values: a rollout must be possible; what drafts need; embeddings have no drafts; the gateway; TLS.
TOGETHER: list[dict[str, Any]] = [
    {
        "anyOf": [
            {"properties": {name: {"minimum": 1}}} for name in ("kubernetes_max_unavailable", "kubernetes_max_surge")
        ]
    },
    implied({"llama_server_spec_type": {"const": "draft-simple"}}, {"llama_server_draft_model": GIVEN}),
    implied(
        {"llama_server_draft_model": GIVEN},
        {"llama_server_spec_type": {"enum": ["auto", "none", "draft-simple", "draft-mtp"]}},
    ),
    implied({"llama_server_embeddings": {"const": True}}, {"llama_server_spec_type": {"enum": ["auto", "none"]}}),
    implied(
        {"llama_server_embeddings": {"const": True}, "llama_server_spec_type": {"const": "auto"}},
        {"llama_server_draft_model": NONE},
    ),
    implied(
        {"kubernetes_gateway_image": GIVEN},
        {"llama_gateway_group_key": {"minLength": 16}, "llama_gateway_api_keys": {"minItems": 1}},
    ),
    implied(
        {"kubernetes_gateway_image": NONE},
        {"llama_gateway_tls_certificate": NONE, "kubernetes_gateway_tls_secret": NONE},
    ),
    implied({"llama_gateway_tls_certificate": GIVEN}, {"kubernetes_gateway_tls_secret": NONE}),
    implied({"llama_gateway_tls_certificate": GIVEN}, {"llama_gateway_tls_key": GIVEN}),
    implied({"llama_gateway_tls_certificate": NONE}, {"llama_gateway_tls_key": NONE}),
]
TYPES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean", "list": "array", "dict": "object"}
Key = tuple[bool, ...]


def rendered() -> dict[Key, list[dict[str, Any]]]:
    """Return the manifests that the role writes, by the state of all switches."""
    variables = {}
    for key in itertools.product((False, True), repeat=len(SWITCHES)):
        changes = [by_side[on] for by_side, on in zip(SWITCHES.values(), key)]
        variables[key] = dict(itertools.chain(MARKERS.items(), *(it.items() for it in changes)))
    # Several keys have the same variables, which are rendered once.
    different = [it for number, it in enumerate(variables.values()) if it not in list(variables.values())[:number]]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tasks = [
            {
                "ansible.builtin.include_role": {"name": "llama_cpp.cluster.kubernetes"},
                "vars": {
                    **it,
                    "kubernetes_name": NAME,
                    "kubernetes_namespace": SPACE,
                    "kubernetes_state": "rendered",
                    "kubernetes_folder": str(folder / str(number)),
                },
            }
            for number, it in enumerate(different)
        ]
        (folder / "play.yml").write_text(
            json.dumps([{"hosts": "localhost", "gather_facts": False, "tasks": tasks}]), encoding="utf-8"
        )
        done = subprocess.run(
            [Path(sys.executable).with_name("ansible-playbook"), folder / "play.yml"],
            env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "NO_COLOR": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        return {
            key: list(yaml.safe_load_all((folder / f"{different.index(it)}/{NAME}.yml").read_text(encoding="utf-8")))
            for key, it in variables.items()
        }


class Template:
    """Data in which placeholders stand for Helm expressions until the data is text."""

    def __init__(self) -> None:
        self.expressions: list[str] = []

    def word(self, expression: str) -> str:
        """Return a new placeholder for an expression."""
        self.expressions.append(expression)
        return f"ZZ{len(self.expressions) - 1}ZZ"

    def marked(self, data: object) -> object:
        """Return the data with placeholders instead of markers."""
        for marker, expression in WHOLE:
            if type(data) is type(marker) and data == marker:
                return self.word(expression)
        if isinstance(data, dict):
            return {name: self.word(TEXTS[name]) if name in TEXTS else self.marked(it) for name, it in data.items()}
        if isinstance(data, list):
            return [self.marked(it) for it in data]
        if isinstance(data, str):
            found = OF_GROUP.fullmatch(data)
            own = f"{found[1]}{self.word('$group')}" if found else data
            return own.replace(NAME, self.word('include "llama.name" $')) if NAME in own else own
        return data

    def filled(self, text: str) -> str:
        """Return the text with expressions, which give JSON, instead of placeholders and the quotes around them."""
        return re.sub(r'"ZZ(\d+)ZZ"|ZZ(\d+)ZZ', lambda it: f"{{{{ {self.expressions[int(it[1] or it[2])]} }}}}", text)


def as_template(manifest: dict[str, Any]) -> str:
    """Return a manifest as YAML with Helm expressions."""
    template = Template()
    return template.filled(yaml.safe_dump(template.marked(manifest), sort_keys=False, width=4096))


def chosen(contents: Mapping[Key, list[str]], switches: Sequence[str]) -> list[str]:
    """Return the lines, with Helm's conditions around those that depend on a switch; such a block is one item."""
    if not switches:
        return contents[()]
    no, yes = (
        chosen({key[1:]: it for key, it in contents.items() if key[0] is side}, switches[1:]) for side in (False, True)
    )
    found = []
    for what, no_from, no_to, yes_from, yes_to in difflib.SequenceMatcher(None, no, yes, autojunk=False).get_opcodes():
        with_it, without = yes[yes_from:yes_to], no[no_from:no_to]
        if what == "equal":
            found += with_it
        elif with_it:
            other = ["{{- else }}", *without] if without else []
            found.append("\n".join([f"{{{{- if {switches[0]} }}}}", *with_it, *other, "{{- end }}"]))
        else:
            found.append("\n".join([f"{{{{- if not ({switches[0]}) }}}}", *without, "{{- end }}"]))
    return found


def manifests() -> tuple[dict[str, str], str, str]:
    """Return the templates by their names, the pods' settings, and HAProxy's configuration."""
    contents: dict[str, dict[Key, list[str]]] = {}
    configurations: dict[Key, list[str]] = {}
    found = rendered()
    settings = ""
    for key, written in found.items():
        for manifest in written:
            group = OF_GROUP.fullmatch(manifest["metadata"]["name"])
            if group and int(group[2]) != LAST_GROUP:
                continue
            name = f"{manifest['kind']} {group[1] + 'each' if group else manifest['metadata']['name']}"
            contents.setdefault(name, {it: [] for it in found})[key] = as_template(manifest).splitlines()
            settings = manifest.get("data", {}).get("pod.json") or settings
            if "haproxy.cfg" in manifest.get("stringData", {}):
                configurations[key[1:]] = configuration_lines(manifest["stringData"]["haproxy.cfg"])
    files = {}
    for name, by_key in contents.items():
        text = "\n".join([*chosen(by_key, [*SWITCHES]), ""])
        if name.endswith("-each"):
            text = f"{{{{- range $group := until (int ({GROUPS})) }}}}\n---\n{text}{{{{- end }}}}\n"
        if name in CONDITIONAL:
            text = f"{{{{- if {CONDITIONAL[name]} }}}}\n{text}{{{{- end }}}}\n"
        file = name.lower().replace(f" {NAME}", "") + ".tpl"
        files[f"templates/{file}"] = f"{{{{- /* {LICENCE} */ -}}}}\n{{{{- /* {MADE} */}}}}\n{text}"
    configuration = "\n".join([f"{{{{- /* {LICENCE} */ -}}}}", *chosen(configurations, [*SWITCHES][1:]), ""])
    return files, settings, configuration


def settings_file(settings: str) -> str:
    """Return the settings of the pods as a template."""
    template = Template()
    text = template.filled(json.dumps(template.marked(json.loads(settings))))
    for option, name in OPTIONAL.items():
        text = re.sub(rf', "{option}"(, {{{{ [^}}]+ }}}})?', rf"{{{{ if {value(name)} }}}}\g<0>{{{{ end }}}}", text)
    embeddings = f'{{{{ if {value("llama_server_embeddings")} }}}}, "--embeddings"{{{{ end }}}}'
    text = DRAFT.sub(f'{embeddings}{{{{ include "llama.spec" $ }}}}{{{{ include "llama.extra" $ }}}}', text)
    return f"{text}\n"


def configuration_lines(configuration: str) -> list[str]:
    """Return HAProxy's configuration as lines of a template; a line with a loop around it is one item."""
    if "{{" in configuration:
        raise SystemExit("HAProxy's configuration has {{, which Helm would take for its own.")
    lines = []
    for line in configuration.splitlines():
        groups = set(re.findall(rf"{NAME}-(?:group-)?(\d+)", line))
        if groups - {str(LAST_OF_GATEWAY)}:
            continue
        loop = next((begin for marker, begin in LINES if marker in line), "")
        text = line
        for pattern, expression in PARTS:
            text = re.sub(pattern, expression, text)
        end = "{{- end }}" + "{{ end }}" * loop.count("{{ if")
        lines.append(f"{{{{- {loop} }}}}\n{text}\n{end}" if loop else text)
    return lines


def known_options() -> str:
    """Return, as JSON, the kinds of drafts that role llama_server knows, and what it says of llama-server's options."""
    found = yaml.safe_load((ROOT / "roles/llama_server/vars/main.yml").read_text(encoding="utf-8"))
    own = {names: variable if variable in MARKERS else "" for names, variable in options.OWN.items()}
    known = {
        "drafts": found["__llama_server_spec_types"],
        "option": options.OPTION,
        "options": options.endings(own, "this chart"),
        "unknown": options.UNKNOWN,
        "joined": options.JOINED,
    }
    return json.dumps(known, indent=2) + "\n"


def specifications() -> dict[str, dict[str, Any]]:
    """Return the specifications of the role arguments that are values of the chart."""
    found: dict[str, dict[str, Any]] = {}
    for role in ("kubernetes", "llama_server", "llama_gateway"):
        text = (ROOT / f"roles/{role}/meta/argument_specs.yml").read_text(encoding="utf-8")
        found.update(yaml.safe_load(text)["argument_specs"]["main"]["options"])
    return {name: found[name] for name in MARKERS}


def default(argument: dict[str, Any]) -> object:
    """Return the default of a value, which is empty if the role's default depends on an inventory."""
    found = {} if argument["type"] == "dict" else argument["default"]
    return {"str": "", "int": 0, "list": []}[argument["type"]] if "{{" in str(found) else found


def description(argument: dict[str, Any]) -> str:
    """Return the first paragraph of an argument's description, without Ansible's markup."""
    text = argument["description"]
    plain = re.sub(r"\b[A-Z]\(([^)#]+)[^)]*\)", r"\1", text if isinstance(text, str) else text[0])
    by_default = argument["default"] if argument["type"] == "dict" and argument.get("default") else None
    return f"{plain} By default {json.dumps(by_default)}." if by_default else plain


def schema_of(name: str, argument: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a value."""
    found: dict[str, Any] = {"description": description(argument), "type": TYPES[argument["type"]]}
    if "choices" in argument:
        found["enum"] = argument["choices"]
    if argument["type"] == "list":
        found["items"] = {"type": TYPES[argument["elements"]]}
    if "options" in argument:
        found["items"] |= {
            "additionalProperties": False,
            "required": [part for part, it in argument["options"].items() if it.get("required")],
            "properties": {part: schema_of(part, it) for part, it in argument["options"].items()},
        }
    return {**found, **RANGES.get(name, {})}


def values() -> dict[str, str]:
    """Return values.yaml and its schema, by file name."""
    arguments = specifications()
    lines = [f"# {LICENCE}", f"# {MADE}", "# Values have the names of the role's variables.", "---"]
    for name, argument in arguments.items():
        lines += textwrap.wrap(description(argument), 120, initial_indent="# ", subsequent_indent="# ")
        text = json.dumps(default(argument))
        said = "has to be given" if name in REQUIRED else DERIVED.get(name)
        lines.append(f"# {name}: # {said}" if said else f"{name}: {text}")
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$comment": f"{LICENCE}. {MADE}",
        "type": "object",
        "additionalProperties": False,
        "required": list(REQUIRED),
        # Helm has it for charts that contain this one.
        "properties": {"global": {}, **{name: schema_of(name, it) for name, it in arguments.items()}},
        "allOf": TOGETHER,
    }
    return {"values.yaml": "\n".join([*lines, ""]), "values.schema.json": json.dumps(schema, indent=2) + "\n"}


def chart() -> dict[str, str]:
    """Return the files of the chart that this script writes, by path."""
    files, settings, configuration = manifests()
    files |= values()
    files |= {"files/pod.json": settings_file(settings), "files/haproxy.cfg": configuration}
    files["files/options.json"] = known_options()
    for name, text in files.items():
        left = _LEFT.search(text)
        if left:
            raise SystemExit(f"{name} would have {left[0]}, which is no value of anybody: say what it stands for.")
    return files


def main() -> int:
    """Write the chart, or check whether it is up to date; return the exit status."""
    parser = argparse.ArgumentParser(description="Write the Helm chart from role kubernetes.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if something were written")
    check = parser.parse_args().check
    files = chart()
    there = {str(path.relative_to(CHART)) for path in CHART.glob("templates/*.tpl") if not path.name.startswith("_")}
    different = {
        name for name, text in files.items() if not (CHART / name).exists() or (CHART / name).read_text() != text
    }
    different |= there - files.keys()
    for name in sorted(different):
        print(f"{CHART.relative_to(ROOT)}/{name} {'is another one' if check else 'is written'}")
        if not check:
            (CHART / name).parent.mkdir(exist_ok=True)
            (CHART / name).write_text(files[name]) if name in files else (CHART / name).unlink()
    return 1 if check and different else 0


if __name__ == "__main__":
    sys.exit(main())
