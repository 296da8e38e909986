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

{{- /* The keys of leaders, a line for each: by default that of the gateway. Nobody gives any who makes the Secret. */ -}}
{{- define "llama.api_keys" -}}
{{- $own := without (list .Values.llama_gateway_group_key) "" -}}
{{- ternary (get .Values "llama_server_api_keys") $own (hasKey .Values "llama_server_api_keys") | join "\n" -}}
{{- end -}}

{{- /* How many bytes 24Gi are. */ -}}
{{- define "llama.bytes" -}}
{{- $sizes := dict "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- mul (regexFind "^[0-9]+" .) (get $sizes (regexFind "[A-Z]i$" .) | int64) -}}
{{- end -}}

{{- /* How tokens are drafted, with what model, and how many at a time: by default as llama.cpp has it. */ -}}
{{- define "llama.spec_type" -}}
{{- $auto := ternary "none" "draft-simple" (empty .Values.llama_server_draft_model) -}}
{{- ternary $auto .Values.llama_server_spec_type (eq .Values.llama_server_spec_type "auto") -}}
{{- end -}}

{{- define "llama.draft_model" -}}
{{- if has (include "llama.spec_type" .) (list "draft-simple" "draft-mtp") }}{{ .Values.llama_server_draft_model }}{{ end -}}
{{- end -}}

{{- define "llama.drafted" -}}
{{- with get (.Files.Get "files/options.json" | fromJson).drafts (include "llama.spec_type" .) -}}
{{- default .n_max $.Values.llama_server_spec_draft_n_max | int64 -}}
{{- else -}}
0
{{- end -}}
{{- end -}}

{{- define "llama.spec" -}}
{{- $drafted := include "llama.drafted" . -}}
{{- with get (.Files.Get "files/options.json" | fromJson).drafts (include "llama.spec_type" .) -}}
, "--spec-type", {{ include "llama.spec_type" $ | toRawJson }}, {{ .option | toRawJson }}, {{ $drafted | toRawJson }}
{{- with get . "floor" }}, {{ index . 0 | toRawJson }}, {{ min (index . 1) $drafted | toString | toRawJson }}{{ end }}
{{- end -}}
{{- with include "llama.draft_model" . }}, "--spec-draft-model", {{ toRawJson . }}
{{- if eq (include "llama.spec_type" $) "draft-simple" }}, "--spec-draft-device", "none"{{ end }}{{ end -}}
{{- end -}}

{{- /* What a user adds to the options of llama-server. */ -}}
{{- define "llama.extra" -}}
{{- $known := .Files.Get "files/options.json" | fromJson -}}
{{- range .Values.llama_server_extra_args -}}
{{- if regexMatch $known.option . -}}
{{- $written := regexFind "^[^=\\s]*" . -}}
{{- $option := ternary (replace "_" "-" $written) $written (hasPrefix "--" $written) -}}
{{- $ending := ternary (get $known.options $option) $known.unknown (hasKey $known.options $option) -}}
{{- with $ending | default (ternary "" $known.joined (eq $written .)) -}}
{{- fail (printf "llama_server_extra_args holds %s, %s" $option .) -}}
{{- end -}}
{{- end -}}
, {{ toRawJson . }}
{{- end -}}
{{- end -}}

{{- /* As Ansible writes a list as JSON. */ -}}
{{- define "llama.list" -}}
[{{ range $index, $it := . }}{{ if $index }}, {{ end }}{{ toRawJson $it }}{{ end }}]
{{- end -}}

{{- /* A volume has the name under which it is mounted. */ -}}
{{- define "llama.volume" -}}
{{- merge (dict "name" (index . 0)) (index . 1) | toRawJson -}}
{{- end -}}

{{- /* What the pods are told, and what HAProxy reads. */ -}}
{{- define "llama.pod" -}}
{{- $folder := dir .Values.llama_server_model_path -}}
{{- range concat .Values.llama_server_lora (list .Values.llama_server_draft_model .Values.llama_server_chat_template_file) -}}
{{- if and . (not (hasPrefix (printf "%s/" $folder) .)) -}}
{{- fail (printf "%s is not below %s, and leaders see no other folder of the volume: put it beside the model." . $folder) -}}
{{- end -}}
{{- end -}}
{{- tpl (.Files.Get "files/pod.json") . | trim -}}
{{- end -}}

{{- define "llama.haproxy" -}}
{{- tpl (.Files.Get "files/haproxy.cfg") . -}}
{{- end -}}

{{- define "llama.pem" -}}
{{- if .Values.llama_gateway_tls_certificate -}}
{{ trim .Values.llama_gateway_tls_certificate }}
{{ trim .Values.llama_gateway_tls_key }}
{{ end -}}
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
