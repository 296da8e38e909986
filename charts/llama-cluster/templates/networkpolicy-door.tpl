{{- /* SPDX-License-Identifier: GPL-3.0-or-later */ -}}
{{- /* Written by scripts/chart.py from role kubernetes. */}}
{{- if $.Values.kubernetes_trusted_peers }}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  namespace: {{ $.Release.Namespace | toRawJson }}
  labels:
    app.kubernetes.io/name: llama-cpp
    app.kubernetes.io/instance: {{ include "llama.name" $ | toRawJson }}
    app.kubernetes.io/managed-by: llama_cpp.cluster
  name: {{ include "llama.name" $ }}-door
spec:
  podSelector:
    matchLabels:
      app.kubernetes.io/name: llama-cpp
      app.kubernetes.io/instance: {{ include "llama.name" $ | toRawJson }}
{{- if $.Values.kubernetes_gateway_image }}
      app.kubernetes.io/component: gateway
{{- else }}
      app.kubernetes.io/component: leader
{{- end }}
  policyTypes:
  - Ingress
  ingress:
  - from: {{ $.Values.kubernetes_trusted_peers | toRawJson }}
    ports:
    - protocol: TCP
{{- if $.Values.kubernetes_gateway_image }}
      port: 8000
{{- else }}
      port: {{ int64 $.Values.llama_server_port }}
{{- end }}
{{- end }}
