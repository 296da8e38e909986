{{- /* SPDX-License-Identifier: GPL-3.0-or-later */ -}}
{{- /* Written by scripts/chart.py from role kubernetes. */}}
{{- if include "llama.api_keys" $ }}
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
  keys: {{ printf "%s\n" (include "llama.api_keys" $) | toRawJson }}
  key: {{ first (splitList "\n" (include "llama.api_keys" $)) | toRawJson }}
{{- end }}
