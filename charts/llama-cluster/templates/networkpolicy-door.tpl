{{- /* SPDX-License-Identifier: GPL-3.0-or-later */ -}}
{{- /* Written by scripts/chart.py from role kubernetes. */}}
{{- if $.Values.kubernetes_trusted_peers }}
{{- if $.Values.kubernetes_gateway_image }}
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
      app.kubernetes.io/component: gateway
  policyTypes:
  - Ingress
  ingress:
  - from: {{ $.Values.kubernetes_trusted_peers | toRawJson }}
    ports:
    - protocol: TCP
      port: 8000
{{- else }}
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
      app.kubernetes.io/component: leader
  policyTypes:
  - Ingress
  ingress:
  - from: {{ $.Values.kubernetes_trusted_peers | toRawJson }}
    ports:
    - protocol: TCP
      port: {{ int64 $.Values.llama_server_port }}
{{- end }}
{{- end }}
