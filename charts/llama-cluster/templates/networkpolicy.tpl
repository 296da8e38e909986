{{- /* SPDX-License-Identifier: GPL-3.0-or-later */ -}}
{{- /* Written by scripts/chart.py from role kubernetes. */}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  namespace: {{ $.Release.Namespace | toRawJson }}
  labels:
    app.kubernetes.io/name: llama-cpp
    app.kubernetes.io/instance: {{ include "llama.name" $ | toRawJson }}
    app.kubernetes.io/managed-by: llama_cpp.cluster
  name: {{ include "llama.name" $ | toRawJson }}
spec:
  podSelector:
    matchLabels:
      app.kubernetes.io/name: llama-cpp
      app.kubernetes.io/instance: {{ include "llama.name" $ | toRawJson }}
  policyTypes:
  - Ingress
  - Egress
