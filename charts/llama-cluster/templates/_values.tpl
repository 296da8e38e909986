{{- /* SPDX-License-Identifier: GPL-3.0-or-later */ -}}
{{- /* What the manifests take that is no value as it was given. */ -}}

{{- define "llama.name" -}}
{{- if not (regexMatch "^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$" .Release.Name) -}}
{{- fail (printf "The release is called %s, which is no DNS label that pods can be named after: give up to 40 small letters, digits and -, with a letter first and no - last." .Release.Name) -}}
{{- end -}}
{{- .Release.Name -}}
{{- end -}}

{{- /* The name of the file, without its ending and without the number of a part. */ -}}
{{- define "llama.alias" -}}
{{- $name := regexReplaceAll "[.]gguf$" (base .Values.llama_server_model_path) "" -}}
{{- default (regexReplaceAll "-[0-9]{5}-of-[0-9]{5}$" $name "") .Values.llama_server_alias -}}
{{- end -}}

{{- /* How many bytes 24Gi are. */ -}}
{{- define "llama.bytes" -}}
{{- $sizes := dict "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- mul (regexFind "^[0-9]+" .) (get $sizes (regexFind "[A-Z]i$" .) | int64) -}}
{{- end -}}

{{- /* How many tokens are drafted at a time, by default as llama.cpp has it; and of how many the output is wanted. */ -}}
{{- define "llama.drafted" -}}
{{- default 3 (int64 .Values.llama_server_spec_draft_n_max) -}}
{{- end -}}

{{- define "llama.outputs" -}}
{{- if .Values.llama_server_embeddings -}}
65536
{{- else if .Values.llama_server_draft_model -}}
{{- include "llama.drafted" . | int64 | add1 -}}
{{- else -}}
1
{{- end -}}
{{- end -}}

{{- /* Texts without quotes, as Ansible writes a list of them as JSON. */ -}}
{{- define "llama.list" -}}
{{- if . -}}
["{{ join "\", \"" . }}"]
{{- else -}}
[]
{{- end -}}
{{- end -}}

{{- /* A volume has the name under which it is mounted. */ -}}
{{- define "llama.volume" -}}
{{- merge (dict "name" (index . 0)) (index . 1) | toRawJson -}}
{{- end -}}

{{- /* What the pods are told, and what HAProxy reads. */ -}}
{{- define "llama.pod" -}}
{{- tpl (.Files.Get "files/pod.json") . | trim -}}
{{- end -}}

{{- define "llama.haproxy" -}}
{{- tpl (.Files.Get "files/haproxy.cfg") . -}}
{{- end -}}

{{- define "llama.lua" -}}
{{- .Files.Get "files/wait.lua" | trimSuffix "\n" -}}
{{- end -}}

{{- define "llama.dashboard" -}}
{{- .Files.Get "files/dashboard.json" | trimSuffix "\n" -}}
{{- end -}}

{{- define "llama.keys" -}}
{{- range .Values.llama_gateway_api_keys }}{{ sha256sum .key | upper }} {{ .name }}
{{ end -}}
{{- end -}}

{{- define "llama.models" -}}
{{ include "llama.alias" . }} model1
{{ end -}}
