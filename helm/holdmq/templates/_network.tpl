{{/* Pods of ours: dict root, components. */}}
{{- define "holdmq.peers" -}}
- podSelector:
    matchLabels:
      app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride }}
      app.kubernetes.io/instance: {{ .root.Release.Name }}
    matchExpressions:
      - {key: app.kubernetes.io/component, operator: In, values: {{ toJson .components }}}
{{- end }}

{{/* What every policy begins with; what it does not allow is closed: dict root, component. */}}
{{- define "holdmq.policy" -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ include "holdmq.fullname" .root }}-{{ .component }}
  labels: {{- include "holdmq.labels" . | nindent 4 }}
spec:
  podSelector:
    matchLabels: {{- include "holdmq.selector" . | nindent 6 }}
  policyTypes: [Ingress, Egress]
{{- end }}

{{/* Who may read metrics: dict root, port. */}}
{{- define "holdmq.metricsIngress" -}}
{{- with .root.Values.networkPolicy.metrics }}
- from: {{- toYaml . | nindent 4 }}
  ports: [{port: {{ $.port }}}]
{{- end }}
{{- end }}

{{/* Names are asked wherever the nodes say. */}}
{{- define "holdmq.dnsEgress" -}}
- ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]
{{- end }}

{{/* Where brokers are asked. What one has taken over of a silent one is at a port that the kernel chose. */}}
{{- define "holdmq.brokerPorts" -}}
- {port: 10911}
{{- if eq .Values.broker.engine "kv" }}
- {port: 32768, endPort: 60999}
{{- end }}
{{- end }}

{{/* The way to registries and brokers. */}}
{{- define "holdmq.brokerEgress" -}}
- to: {{- include "holdmq.peers" (dict "root" . "components" (list "registry")) | nindent 4 }}
  ports: [{port: 9876}]
- to: {{- include "holdmq.peers" (dict "root" . "components" (list "broker")) | nindent 4 }}
  ports: {{- include "holdmq.brokerPorts" . | nindent 4 }}
{{- end }}

{{/* Applications that use registries and brokers. */}}
{{- define "holdmq.clientPeers" -}}
- podSelector: {matchLabels: {{ printf "{%s-client: %q}" (include "holdmq.fullname" .) "true" }}}
{{- with .Values.networkPolicy.clients }}
{{ toYaml . }}
{{- end }}
{{- end }}
