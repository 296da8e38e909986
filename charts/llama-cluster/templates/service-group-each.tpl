{{- /* SPDX-License-Identifier: GPL-3.0-or-later */ -}}
{{- /* Written by scripts/chart.py from role kubernetes. */}}
{{- range $group := until (int (add (int64 $.Values.kubernetes_replicas) (int64 $.Values.kubernetes_max_surge))) }}
---
{{- if $.Values.kubernetes_gateway_image }}
apiVersion: v1
kind: Service
metadata:
  namespace: {{ $.Release.Namespace | toRawJson }}
  labels:
    app.kubernetes.io/name: llama-cpp
    app.kubernetes.io/instance: {{ include "llama.name" $ | toRawJson }}
    app.kubernetes.io/managed-by: llama_cpp.cluster
    app.kubernetes.io/component: leader
  name: {{ include "llama.name" $ }}-group-{{ $group }}
spec:
  selector:
    app.kubernetes.io/name: llama-cpp
    app.kubernetes.io/instance: {{ include "llama.name" $ | toRawJson }}
    app.kubernetes.io/component: leader
    leaderworkerset.sigs.k8s.io/group-index: {{ $group | toString | toRawJson }}
  publishNotReadyAddresses: true
  ports:
  - name: api
    port: {{ int64 $.Values.llama_server_port }}
    targetPort: api
  - name: ready
    port: {{ add1 (int64 $.Values.llama_server_port) }}
    targetPort: ready
{{- end }}
{{- end }}
