{{/* What a component's pods have: `pods`, changed by its own `pod`: dict root, component. */}}
{{- define "holdmq.pod" -}}
{{ mergeOverwrite (deepCopy .root.Values.pods) (deepCopy (get .root.Values .component).pod) | toYaml }}
{{- end }}

{{/* Metadata of a pod: dict root, component. A change of its configuration starts it anew. */}}
{{- define "holdmq.podMetadata" -}}
{{- $pod := include "holdmq.pod" . | fromYaml -}}
labels:
  {{- include "holdmq.labels" . | nindent 2 }}
  {{- with $pod.labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  checksum/config: {{ include "holdmq.config" . | sha256sum }}
  {{- with $pod.annotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{- define "holdmq.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "holdmq.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Copies of a shard are on nodes of their own: dict root, component, shard. */}}
{{- define "holdmq.copiesApart" -}}
podAntiAffinity:
  {{- if eq .root.Values.broker.copiesApart "hard" }}
  requiredDuringSchedulingIgnoredDuringExecution:
    - topologyKey: kubernetes.io/hostname
      labelSelector:
        matchLabels: {{- include "holdmq.selector" . | nindent 10 }}
  {{- else }}
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels: {{- include "holdmq.selector" . | nindent 12 }}
  {{- end }}
{{- end }}

{{/* Where a pod may run: dict root, component, and of brokers with copies shard. */}}
{{- define "holdmq.placement" -}}
{{- $pod := include "holdmq.pod" . | fromYaml -}}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $pod.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $pod.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- $affinity := default dict $pod.affinity -}}
{{- if and .shard (not (hasKey $affinity "podAntiAffinity")) -}}
{{- $affinity = merge (include "holdmq.copiesApart" . | fromYaml) $affinity -}}
{{- end -}}
{{- with $affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- else }}
{{- if and (eq .component "console") (eq (include "holdmq.consoleReads" .root) "node") }}
affinity:
  podAffinity:
    # The job's volume is on one node at a time.
    requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            {{- include "holdmq.selector" (dict "root" .root "component" (include "holdmq.statsWriter" .root)) | nindent 12 }}
{{- end }}
{{- end }}
{{- with $pod.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
topologySpreadConstraints:
{{- if kindIs "slice" $pod.topologySpreadConstraints }}
  {{- toYaml $pod.topologySpreadConstraints | nindent 2 }}
{{- else }}
{{- range $key := list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ $key }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "holdmq.selector" $ | nindent 8 }}
{{- end }}
{{- end }}
{{- end }}

{{/*
Probes of the admin port. A process has started when it has what it needs of its own (a broker its log, after a
recovery); it is ready while it takes work; it is alive while its event loop turns.
*/}}
{{- define "holdmq.probes" -}}
startupProbe:
  httpGet: {path: /startz, port: admin}
  periodSeconds: 2
  failureThreshold: 300
readinessProbe:
  httpGet: {path: /readyz, port: admin}
  periodSeconds: 5
  timeoutSeconds: 5
livenessProbe:
  httpGet: {path: /healthz, port: admin}
  periodSeconds: 10
  timeoutSeconds: 5
{{- end }}

{{/* Variables of a container: dict root, component. */}}
{{- define "holdmq.env" -}}
{{- if has .component (list "stats" "console") }}
{{- with .root.Values.stats.postgresqlSecret }}
{{- include "holdmq.postgresqlEnv" . }}
{{ end }}
{{- end }}
{{- if and (eq .component "broker") (eq .root.Values.broker.engine "kv") .root.Values.broker.kv.existingSecret }}
- name: HOLDMQ_STORAGE__KV__URL
  valueFrom: {secretKeyRef: {name: {{ .root.Values.broker.kv.existingSecret }}, key: url}}
{{ end }}
{{- with (include "holdmq.pod" . | fromYaml).extraEnv }}
{{- toYaml . }}
{{- end }}
{{- end }}

{{/* Mounts that every container has: dict root, component. */}}
{{- define "holdmq.mounts" -}}
- {name: config, mountPath: /etc/holdmq, readOnly: true}
- {name: keys, mountPath: /run/secrets/holdmq, readOnly: true}
{{- if .root.Values.tls.enabled }}
- {name: tls, mountPath: /run/secrets/tls, readOnly: true}
{{- end }}
- {name: tmp, mountPath: /tmp}
{{- with (include "holdmq.pod" . | fromYaml).extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The volumes of these mounts: dict root, component, keys (files of the secret), isServer (has the key of TLS). */}}
{{- define "holdmq.volumes" -}}
- name: config
  configMap: {name: {{ include "holdmq.fullname" .root }}-{{ .component }}}
- name: keys
  secret:
    secretName: {{ include "holdmq.keysSecret" .root }}
    defaultMode: 0440
    items:
      {{- range .keys }}
      - {key: {{ . }}, path: {{ . }}}
      {{- end }}
{{- if .root.Values.tls.enabled }}
- name: tls
  secret:
    secretName: {{ include "holdmq.tlsSecret" .root }}
    defaultMode: 0440
    items:
      - {key: ca.crt, path: ca.crt}
      {{- if .isServer }}
      - {key: tls.crt, path: tls.crt}
      - {key: tls.key, path: tls.key}
      {{- end }}
{{- end }}
- name: tmp
  emptyDir: {sizeLimit: 256Mi}
{{- with (include "holdmq.pod" . | fromYaml).extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* A claim's spec: the values of a volume. */}}
{{- define "holdmq.claim" -}}
accessModes: [{{ .accessMode | default "ReadWriteOnce" }}]
{{- with .storageClass }}
storageClassName: {{ . }}
{{- end }}
resources:
  requests: {storage: {{ .size }}}
{{- end }}

{{/* A budget of disruptions: dict root, component, and for one of a shard shard. */}}
{{- define "holdmq.budget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "holdmq.fullname" .root }}-{{ .component }}{{ with .shard }}-{{ . }}{{ end }}
  labels: {{- include "holdmq.labels" . | nindent 4 }}
spec:
  maxUnavailable: {{ (get .root.Values .component).maxUnavailable }}
  # A pod that is not ready serves nobody, and keeps no node from being emptied.
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels: {{- include "holdmq.selector" . | nindent 6 }}
{{- end }}

{{/* How the console reads the job's tables: "node" = their volume, on its node; "volume" = from any node; "" = not. */}}
{{- define "holdmq.consoleReads" -}}
{{- if and .Values.stats.enabled (not .Values.stats.postgresqlSecret) -}}
{{ ternary "node" "volume" (eq .Values.stats.volume.accessMode "ReadWriteOnce") }}
{{- end -}}
{{- end }}

{{/* The component whose pod has the job's volume. */}}
{{- define "holdmq.statsWriter" -}}
{{ ternary "stats-driver" "stats" (eq (include "holdmq.statsMode" .) "spark") }}
{{- end }}

{{/* The variable with the database's address. */}}
{{- define "holdmq.postgresqlEnv" -}}
- name: HOLDMQ_STATS__POSTGRESQL_URL
  valueFrom: {secretKeyRef: {name: {{ . }}, key: url}}
{{- end }}
