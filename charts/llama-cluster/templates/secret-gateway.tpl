{{- /* SPDX-License-Identifier: GPL-3.0-or-later */ -}}
{{- /* Written by scripts/chart.py from role kubernetes. */}}
{{- if $.Values.kubernetes_gateway_image }}
apiVersion: v1
kind: Secret
metadata:
  namespace: {{ $.Release.Namespace | toRawJson }}
  labels:
    app.kubernetes.io/name: llama-cpp
    app.kubernetes.io/instance: {{ include "llama.name" $ | toRawJson }}
    app.kubernetes.io/managed-by: llama_cpp.cluster
  name: {{ include "llama.name" $ }}-gateway
stringData:
  keys.map: {{ include "llama.keys" $ | toRawJson }}
  models.map: {{ include "llama.models" $ | toRawJson }}
  haproxy.cfg: {{ include "llama.haproxy" $ | toRawJson }}
{{- if or $.Values.llama_gateway_tls_certificate $.Values.kubernetes_gateway_tls_secret }}
{{- if not ($.Values.kubernetes_gateway_tls_secret) }}
  door.pem: {{ include "llama.pem" $ | toRawJson }}
{{- end }}
{{- end }}
  wait.lua: {{ include "llama.lua" $ | toRawJson }}
{{- end }}
