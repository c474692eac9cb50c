{{/* The name that begins the names of all that is installed. */}}
{{- define "holdmq.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{/* By these labels services and policies find a component's pods: dict root, component, and of brokers with copies shard. They never change. */}}
{{- define "holdmq.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- with .shard }}
holdmq/shard: {{ . | quote }}
{{- end }}
{{- end }}

{{/* Labels of all that is installed: dict root, component. */}}
{{- define "holdmq.labels" -}}
{{ include "holdmq.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Where an image is: dict root, image. */}}
{{- define "holdmq.image" -}}
{{- $name := ternary .image.repository (printf "%s/%s" .image.registry .image.repository) (empty .image.registry) -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $name .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (default .root.Chart.AppVersion .image.tag) -}}
{{- end -}}
{{- end }}

{{/* The DNS domain of a service: dict root, service. */}}
{{- define "holdmq.domain" -}}
{{ printf "%s-%s.%s.svc.%s" (include "holdmq.fullname" .root) .service .root.Release.Namespace .root.Values.clusterDomain }}
{{- end }}

{{- define "holdmq.keysSecret" -}}
{{ .Values.keys.existingSecret | default (printf "%s-keys" (include "holdmq.fullname" .)) }}
{{- end }}

{{- define "holdmq.tlsSecret" -}}
{{ .Values.tls.existingSecret | default (printf "%s-tls" (include "holdmq.fullname" .)) }}
{{- end }}

{{- define "holdmq.mqttTlsSecret" -}}
{{ .Values.mqtt.tls.existingSecret | default (printf "%s-mqtt-tls" (include "holdmq.fullname" .)) }}
{{- end }}

{{- define "holdmq.statsClaim" -}}
{{ .Values.stats.volume.existingClaim | default (printf "%s-stats" (include "holdmq.fullname" .)) }}
{{- end }}

{{/* "spark" when the job is a SparkApplication, else "deployment". */}}
{{- define "holdmq.statsMode" -}}
{{- if ne .Values.stats.mode "auto" -}}
{{ .Values.stats.mode }}
{{- else -}}
{{ ternary "spark" "deployment" (.Capabilities.APIVersions.Has "sparkoperator.k8s.io/v1beta2") }}
{{- end -}}
{{- end }}

{{/* The service of the gateway for clients in the cluster. */}}
{{- define "holdmq.internalGateway" -}}
{{ include "holdmq.fullname" . }}-gateway{{ if or .Values.mqtt.proxyProtocol.enabled (not .Values.mqtt.tcp.enabled) }}-internal{{ end }}
{{- end }}
