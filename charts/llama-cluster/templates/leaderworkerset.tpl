{{- /* SPDX-License-Identifier: GPL-3.0-or-later */ -}}
{{- /* Written by scripts/chart.py from role kubernetes. */}}
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata:
  namespace: {{ $.Release.Namespace | toRawJson }}
  labels:
    app.kubernetes.io/name: llama-cpp
    app.kubernetes.io/instance: {{ include "llama.name" $ | toRawJson }}
    app.kubernetes.io/managed-by: llama_cpp.cluster
  name: {{ include "llama.name" $ | toRawJson }}
spec:
  replicas: {{ int64 $.Values.kubernetes_replicas }}
  startupPolicy: LeaderCreated
  rolloutStrategy:
    type: RollingUpdate
    rollingUpdateConfiguration:
      maxUnavailable: {{ int64 $.Values.kubernetes_max_unavailable }}
      maxSurge: {{ int64 $.Values.kubernetes_max_surge }}
  leaderWorkerTemplate:
    size: {{ int64 $.Values.kubernetes_size }}
    restartPolicy: RecreateGroupOnPodRestart
    leaderTemplate:
      metadata:
        labels:
          app.kubernetes.io/name: llama-cpp
          app.kubernetes.io/instance: {{ include "llama.name" $ | toRawJson }}
          app.kubernetes.io/component: leader
        annotations:
          checksum/settings: {{ include "llama.pod" $ | sha256sum | toRawJson }}
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
        topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: topology.kubernetes.io/zone
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels:
              app.kubernetes.io/name: llama-cpp
              app.kubernetes.io/instance: {{ include "llama.name" $ | toRawJson }}
              app.kubernetes.io/component: leader
        containers:
        - name: leader
          image: {{ $.Values.kubernetes_image | toRawJson }}
          command:
          - /usr/bin/python3
          - -B
          - -E
          - -s
          - /usr/local/lib/llama_server/llama_pod.py
          - leader
          - /etc/llama_server/pod.json
          env:
          - name: POD_IP
            valueFrom:
              fieldRef:
                fieldPath: status.podIP
          - name: GGML_NO_BACKTRACE
            value: '1'
          ports:
          - name: api
            containerPort: {{ int64 $.Values.llama_server_port }}
          - name: ready
            containerPort: {{ add1 (int64 $.Values.llama_server_port) }}
          resources:
            requests:
              cpu: {{ int64 $.Values.kubernetes_leader_cpu | toString | toRawJson }}
              memory: {{ $.Values.kubernetes_leader_memory | toRawJson }}
            limits:
              cpu: {{ int64 $.Values.kubernetes_leader_cpu | toString | toRawJson }}
              memory: {{ $.Values.kubernetes_leader_memory | toRawJson }}
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities:
              drop:
              - ALL
          startupProbe:
            httpGet:
              path: /live
              port: ready
            periodSeconds: 1
            failureThreshold: 60
          readinessProbe:
            httpGet:
              path: /ready
              port: ready
            periodSeconds: 2
            timeoutSeconds: 3
          livenessProbe:
            httpGet:
              path: /live
              port: ready
            periodSeconds: 10
            timeoutSeconds: 5
            failureThreshold: 6
          lifecycle:
            preStop:
              exec:
                command:
                - /usr/bin/python3
                - -B
                - -E
                - -s
                - /usr/local/lib/llama_server/llama_pod.py
                - drain
                - /etc/llama_server/pod.json
          volumeMounts:
          - name: settings
            mountPath: /etc/llama_server
            readOnly: true
          - name: model
            mountPath: {{ dir $.Values.llama_server_model_path | toRawJson }}
            readOnly: true
        volumes:
        - name: settings
          projected:
            sources:
            - configMap:
                name: {{ include "llama.name" $ }}-settings
            - secret:
                name: {{ include "llama.name" $ }}-keys
                items:
                - key: keys
                  path: {{ printf "%d.keys" (int64 $.Values.llama_server_port) | toRawJson }}
        - {{ include "llama.volume" (list "model" $.Values.kubernetes_model_volume) }}
    workerTemplate:
      metadata:
        labels:
          app.kubernetes.io/name: llama-cpp
          app.kubernetes.io/instance: {{ include "llama.name" $ | toRawJson }}
          app.kubernetes.io/component: worker
        annotations:
          checksum/settings: {{ include "llama.pod" $ | sha256sum | toRawJson }}
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
        terminationGracePeriodSeconds: 1
        affinity:
          podAntiAffinity:
            requiredDuringSchedulingIgnoredDuringExecution:
            - topologyKey: kubernetes.io/hostname
              labelSelector:
                matchLabels:
                  app.kubernetes.io/name: llama-cpp
                  app.kubernetes.io/instance: {{ include "llama.name" $ | toRawJson }}
                  app.kubernetes.io/component: worker
        containers:
        - name: worker
          image: {{ $.Values.kubernetes_image | toRawJson }}
          command:
          - /usr/bin/python3
          - -B
          - -E
          - -s
          - /usr/local/lib/llama_server/llama_pod.py
          - worker
          - /etc/llama_server/pod.json
          env:
          - name: POD_IP
            valueFrom:
              fieldRef:
                fieldPath: status.podIP
          - name: GGML_NO_BACKTRACE
            value: '1'
          - name: LLAMA_CACHE
            value: /var/cache/llama_rpc
          - name: GGML_RPC_CACHE_MIN_FREE
            value: 10%
          ports:
          - name: rpc
            containerPort: 50052
          resources:
            requests:
              cpu: {{ int64 $.Values.kubernetes_worker_cpu | toString | toRawJson }}
              memory: {{ $.Values.kubernetes_worker_memory | toRawJson }}
            limits:
              cpu: {{ int64 $.Values.kubernetes_worker_cpu | toString | toRawJson }}
              memory: {{ $.Values.kubernetes_worker_memory | toRawJson }}
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities:
              drop:
              - ALL
          startupProbe:
            exec:
              command:
              - /usr/bin/python3
              - -B
              - -E
              - -s
              - /usr/local/lib/llama_server/llama_pod.py
              - listens
              - /etc/llama_server/pod.json
            periodSeconds: 1
            timeoutSeconds: 10
            failureThreshold: 60
          readinessProbe:
            exec:
              command:
              - /usr/bin/python3
              - -B
              - -E
              - -s
              - /usr/local/lib/llama_server/llama_pod.py
              - listens
              - /etc/llama_server/pod.json
            periodSeconds: 30
            timeoutSeconds: 10
          livenessProbe:
            exec:
              command:
              - /usr/bin/python3
              - -B
              - -E
              - -s
              - /usr/local/lib/llama_server/llama_pod.py
              - listens
              - /etc/llama_server/pod.json
            periodSeconds: 60
            timeoutSeconds: 10
          volumeMounts:
          - name: settings
            mountPath: /etc/llama_server
            readOnly: true
          - name: cache
            mountPath: /var/cache/llama_rpc
        volumes:
        - name: settings
          configMap:
            name: {{ include "llama.name" $ }}-settings
        - {{ include "llama.volume" (list "cache" (default (dict "emptyDir" dict) $.Values.kubernetes_cache_volume)) }}
