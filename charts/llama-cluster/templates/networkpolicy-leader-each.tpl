{{- /* SPDX-License-Identifier: GPL-3.0-or-later */ -}}
{{- /* Written by scripts/chart.py from role kubernetes. */}}
{{- range $group := until (int (add (int64 $.Values.kubernetes_replicas) (int64 $.Values.kubernetes_max_surge))) }}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  namespace: {{ $.Release.Namespace | toRawJson }}
  labels:
    app.kubernetes.io/name: llama-cpp
    app.kubernetes.io/instance: {{ include "llama.name" $ | toRawJson }}
    app.kubernetes.io/managed-by: llama_cpp.cluster
  name: {{ include "llama.name" $ }}-leader-{{ $group }}
spec:
  podSelector:
    matchLabels:
      app.kubernetes.io/name: llama-cpp
      app.kubernetes.io/instance: {{ include "llama.name" $ | toRawJson }}
      app.kubernetes.io/component: leader
      leaderworkerset.sigs.k8s.io/group-index: {{ $group | toString | toRawJson }}
  policyTypes:
  - Egress
  egress:
  - to:
    - podSelector:
        matchLabels:
          app.kubernetes.io/name: llama-cpp
          app.kubernetes.io/instance: {{ include "llama.name" $ | toRawJson }}
          app.kubernetes.io/component: worker
          leaderworkerset.sigs.k8s.io/group-index: {{ $group | toString | toRawJson }}
    ports:
    - protocol: TCP
      port: 50052
{{- end }}
