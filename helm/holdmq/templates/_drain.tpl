{{/* Connections and clients sent away per second of one worker, at least 1. */}}
{{- define "holdmq.workerConnections" -}}
{{ ceil (divf .Values.gateway.connectionsMax .Values.gateway.workers) | int }}
{{- end }}

{{- define "holdmq.workerDrainRate" -}}
{{ max 1 (div .Values.gateway.drain.ratePerSecond .Values.gateway.workers) }}
{{- end }}

{{/*
How long a full pod takes to send its clients away. A worker keeps the last second for what these leave to be
written, and 5 s are for answers that are under way; the gateway's default of 10 s is the least.
*/}}
{{- define "holdmq.drainSeconds" -}}
{{- $away := ceil (divf (include "holdmq.workerConnections" .) (include "holdmq.workerDrainRate" .)) | int -}}
{{- $seconds := max 10 (add $away 6) -}}
{{- if gt $seconds 3600 -}}
{{- fail (printf "a pod of %d connections that sends away %d a second takes %d s to end, and 3600 are the most: raise gateway.drain.ratePerSecond or lower gateway.connectionsMax" (int .Values.gateway.connectionsMax) (int .Values.gateway.drain.ratePerSecond) $seconds) -}}
{{- end -}}
{{ $seconds }}
{{- end }}

{{/* From the request to end until Kubernetes kills: the gateway itself gives a worker 10 s more than that. */}}
{{- define "holdmq.gatewayGraceSeconds" -}}
{{ add .Values.gateway.drain.delaySeconds (include "holdmq.drainSeconds" .) 15 }}
{{- end }}

{{/*
How an autoscaler goes. New clients do not wait: up at once. A pod that goes sends all its clients to the others: one
at a time, and the next when they have settled.
*/}}
{{- define "holdmq.scalingBehavior" -}}
scaleUp:
  stabilizationWindowSeconds: 0
  selectPolicy: Max
  policies:
    - {type: Percent, value: 100, periodSeconds: 15}
    - {type: Pods, value: 4, periodSeconds: 15}
scaleDown:
  stabilizationWindowSeconds: 300
  selectPolicy: Max
  policies:
    - {type: Pods, value: 1, periodSeconds: {{ min 1800 (include "holdmq.gatewayGraceSeconds" .) }}}
{{- end }}
