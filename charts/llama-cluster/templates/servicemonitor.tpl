{{- /* SPDX-License-Identifier: GPL-3.0-or-later */ -}}
{{- /* Written by scripts/chart.py from role kubernetes. */}}
{{- if $.Values.kubernetes_monitoring_peers }}
apiVersion: monitoring.coreos.com/v1
kind: ServiceMonitor
metadata:
  namespace: {{ $.Release.Namespace | toRawJson }}
  labels:
    app.kubernetes.io/name: llama-cpp
    app.kubernetes.io/instance: {{ include "llama.name" $ | toRawJson }}
    app.kubernetes.io/managed-by: llama_cpp.cluster
  name: {{ include "llama.name" $ | toRawJson }}
spec:
  selector:
    matchLabels:
      app.kubernetes.io/name: llama-cpp
      app.kubernetes.io/instance: {{ include "llama.name" $ | toRawJson }}
      app.kubernetes.io/component: leader
  endpoints:
  - port: api
    authorization:
      credentials:
        name: {{ include "llama.name" $ }}-keys
        key: key
{{- end }}
