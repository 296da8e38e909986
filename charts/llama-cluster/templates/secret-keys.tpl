{{- /* SPDX-License-Identifier: GPL-3.0-or-later */ -}}
{{- /* Written by scripts/chart.py from role kubernetes. */}}
{{- if $.Values.llama_server_api_keys }}
apiVersion: v1
kind: Secret
metadata:
  namespace: {{ $.Release.Namespace | toRawJson }}
  labels:
    app.kubernetes.io/name: llama-cpp
    app.kubernetes.io/instance: {{ include "llama.name" $ | toRawJson }}
    app.kubernetes.io/managed-by: llama_cpp.cluster
  name: {{ include "llama.name" $ }}-keys
stringData:
  keys: {{ printf "%s\n" (join "\n" $.Values.llama_server_api_keys) | toRawJson }}
  key: {{ first $.Values.llama_server_api_keys | toRawJson }}
{{- end }}
