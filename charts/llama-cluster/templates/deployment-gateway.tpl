{{- /* SPDX-License-Identifier: GPL-3.0-or-later */ -}}
{{- /* Written by scripts/chart.py from role kubernetes. */}}
{{- if $.Values.kubernetes_gateway_image }}
apiVersion: apps/v1
kind: Deployment
metadata:
  namespace: {{ $.Release.Namespace | toRawJson }}
  labels:
    app.kubernetes.io/name: llama-cpp
    app.kubernetes.io/instance: {{ include "llama.name" $ | toRawJson }}
    app.kubernetes.io/managed-by: llama_cpp.cluster
  name: {{ include "llama.name" $ }}-gateway
spec:
  replicas: 1
  strategy:
    rollingUpdate:
      maxUnavailable: 0
      maxSurge: 1
  selector:
    matchLabels:
      app.kubernetes.io/name: llama-cpp
      app.kubernetes.io/instance: {{ include "llama.name" $ | toRawJson }}
      app.kubernetes.io/component: gateway
  template:
    metadata:
      labels:
        app.kubernetes.io/name: llama-cpp
        app.kubernetes.io/instance: {{ include "llama.name" $ | toRawJson }}
        app.kubernetes.io/component: gateway
      annotations:
        checksum/configuration: {{ printf "%s%s%s%s%s" (include "llama.keys" $) (include "llama.models" $) (include "llama.haproxy" $) (include "llama.pem" $) (include "llama.lua" $) | sha256sum | toRawJson }}
    spec:
      automountServiceAccountToken: false
      enableServiceLinks: false
      nodeSelector: {{ $.Values.kubernetes_node_selector | toRawJson }}
      securityContext:
        runAsNonRoot: true
        runAsUser: 10001
        runAsGroup: 10001
        fsGroup: 10001
        fsGroupChangePolicy: OnRootMismatch
        seccompProfile:
          type: RuntimeDefault
      terminationGracePeriodSeconds: {{ add 30 (int64 $.Values.llama_server_drain_timeout) }}
      containers:
      - name: haproxy
        image: {{ $.Values.kubernetes_gateway_image | toRawJson }}
        command:
        - haproxy
        - -W
        - -db
        - -f
        - /etc/llama_gateway/haproxy.cfg
        env:
        - name: POD_IP
          valueFrom:
            fieldRef:
              fieldPath: status.podIP
        - name: GGML_NO_BACKTRACE
          value: '1'
        ports:
        - name: api
          containerPort: 8000
        - name: alive
          containerPort: 8001
        resources:
          requests:
            cpu: '1'
            memory: 4Gi
          limits:
            cpu: '1'
            memory: 4Gi
        securityContext:
          allowPrivilegeEscalation: false
          readOnlyRootFilesystem: true
          capabilities:
            drop:
            - ALL
        readinessProbe:
          httpGet:
            path: /health
            port: alive
          periodSeconds: 2
        livenessProbe:
          httpGet:
            path: /health
            port: alive
          periodSeconds: 10
          timeoutSeconds: 5
        lifecycle:
          preStop:
            exec:
              command:
              - sh
              - -c
              - {{ printf "sleep 5; kill -USR1 1; sleep %d" (int64 $.Values.llama_server_drain_timeout) | toRawJson }}
        volumeMounts:
        - name: configuration
          mountPath: /etc/llama_gateway
          readOnly: true
        - name: runtime
          mountPath: /run/llama-gateway
      volumes:
      - name: configuration
{{- if or $.Values.llama_gateway_tls_certificate $.Values.kubernetes_gateway_tls_secret }}
{{- if $.Values.kubernetes_gateway_tls_secret }}
        projected:
          sources:
          - secret:
              name: {{ include "llama.name" $ }}-gateway
          - secret:
              name: {{ $.Values.kubernetes_gateway_tls_secret | toRawJson }}
              items:
              - key: tls.crt
                path: door.pem
              - key: tls.key
                path: door.pem.key
{{- else }}
        secret:
          secretName: {{ include "llama.name" $ }}-gateway
{{- end }}
{{- else }}
        secret:
          secretName: {{ include "llama.name" $ }}-gateway
{{- end }}
      - name: runtime
        emptyDir:
          medium: Memory
          sizeLimit: 1Mi
{{- end }}
