{{- /* SPDX-License-Identifier: GPL-3.0-or-later */ -}}
{{- /* Written by scripts/chart.py from role kubernetes. */}}
{{- if $.Values.kubernetes_monitoring_peers }}
apiVersion: v1
kind: ConfigMap
metadata:
  namespace: {{ $.Release.Namespace | toRawJson }}
  labels:
    app.kubernetes.io/name: llama-cpp
    app.kubernetes.io/instance: {{ include "llama.name" $ | toRawJson }}
    app.kubernetes.io/managed-by: llama_cpp.cluster
    grafana_dashboard: '1'
  name: {{ include "llama.name" $ }}-dashboard
data:
  llama_cpp.json: {{ include "llama.dashboard" $ | toRawJson }}
{{- end }}
