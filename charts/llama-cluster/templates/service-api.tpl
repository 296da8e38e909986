{{- /* SPDX-License-Identifier: GPL-3.0-or-later */ -}}
{{- /* Written by scripts/chart.py from role kubernetes. */}}
{{- if $.Values.kubernetes_gateway_image }}
apiVersion: v1
kind: Service
metadata:
  namespace: {{ $.Release.Namespace | toRawJson }}
  labels:
    app.kubernetes.io/name: llama-cpp
    app.kubernetes.io/instance: {{ include "llama.name" $ | toRawJson }}
    app.kubernetes.io/managed-by: llama_cpp.cluster
    app.kubernetes.io/component: gateway
  name: {{ include "llama.name" $ }}-api
spec:
  selector:
    app.kubernetes.io/name: llama-cpp
    app.kubernetes.io/instance: {{ include "llama.name" $ | toRawJson }}
    app.kubernetes.io/component: gateway
  ports:
  - name: api
    port: 80
    targetPort: api
{{- else }}
apiVersion: v1
kind: Service
metadata:
  namespace: {{ $.Release.Namespace | toRawJson }}
  labels:
    app.kubernetes.io/name: llama-cpp
    app.kubernetes.io/instance: {{ include "llama.name" $ | toRawJson }}
    app.kubernetes.io/managed-by: llama_cpp.cluster
    app.kubernetes.io/component: leader
  name: {{ include "llama.name" $ }}-api
spec:
  selector:
    app.kubernetes.io/name: llama-cpp
    app.kubernetes.io/instance: {{ include "llama.name" $ | toRawJson }}
    app.kubernetes.io/component: leader
  ports:
  - name: api
    port: 80
    targetPort: api
{{- end }}
