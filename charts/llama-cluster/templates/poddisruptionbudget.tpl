{{- /* SPDX-License-Identifier: GPL-3.0-or-later */ -}}
{{- /* Written by scripts/chart.py from role kubernetes. */}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  namespace: {{ $.Release.Namespace | toRawJson }}
  labels:
    app.kubernetes.io/name: llama-cpp
    app.kubernetes.io/instance: {{ include "llama.name" $ | toRawJson }}
    app.kubernetes.io/managed-by: llama_cpp.cluster
  name: {{ include "llama.name" $ | toRawJson }}
spec:
  maxUnavailable: 1
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      app.kubernetes.io/name: llama-cpp
      app.kubernetes.io/instance: {{ include "llama.name" $ | toRawJson }}
    matchExpressions:
    - key: app.kubernetes.io/component
      operator: In
      values:
      - leader
      - worker
