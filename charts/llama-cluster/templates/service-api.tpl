{{- /* SPDX-License-Identifier: GPL-3.0-or-later */ -}}
{{- /* Written by scripts/chart.py from role kubernetes. */}}
apiVersion: v1
kind: Service
metadata:
  namespace: {{ $.Release.Namespace | toRawJson }}
  labels:
    app.kubernetes.io/name: llama-cpp
    app.kubernetes.io/instance: {{ include "llama.name" $ | toRawJson }}
    app.kubernetes.io/managed-by: llama_cpp.cluster
{{- if $.Values.kubernetes_gateway_image }}
    app.kubernetes.io/component: gateway
{{- else }}
    app.kubernetes.io/component: leader
{{- end }}
  name: {{ include "llama.name" $ }}-api
spec:
  selector:
    app.kubernetes.io/name: llama-cpp
    app.kubernetes.io/instance: {{ include "llama.name" $ | toRawJson }}
{{- if $.Values.kubernetes_gateway_image }}
    app.kubernetes.io/component: gateway
{{- else }}
    app.kubernetes.io/component: leader
{{- end }}
  ports:
  - name: api
{{- if $.Values.kubernetes_gateway_image }}
{{- if or $.Values.llama_gateway_tls_certificate $.Values.kubernetes_gateway_tls_secret }}
    port: 443
{{- else }}
    port: 80
{{- end }}
{{- else }}
    port: 80
{{- end }}
    targetPort: api
