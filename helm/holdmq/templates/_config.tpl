{{/* A value as TOML: what JSON says, but for tables. */}}
{{- define "holdmq.toml" -}}
{{- if kindIs "map" . -}}
{
{{- $comma := "" -}}
{{- range $key, $value := . -}}
{{ $comma }} {{ $key }} = {{ include "holdmq.toml" $value }}
{{- $comma = "," -}}
{{- end }} }
{{- else if kindIs "slice" . -}}
[
{{- range $index, $value := . -}}
{{ if $index }}, {{ end }}{{ include "holdmq.toml" $value }}
{{- end -}}
]
{{- else -}}
{{ toJson . }}
{{- end -}}
{{- end }}

{{/* Which sections of holdmq.toml a component reads, beside those that all read. */}}
{{- define "holdmq.sections" -}}
registry: [registry, alarms]
broker: [broker, storage, alarms, replication, coordination]
gateway: [gateway, access]
stats: [stats]
console: [console, stats]
{{- end }}

{{/*
holdmq.toml of a component (dict root, component): what `config` says, and what the chart sets. A key that both set
is refused: the chart's ports, names and files belong together.
*/}}
{{- define "holdmq.config" -}}
{{- $given := .root.Values.config -}}
{{- $own := include (printf "holdmq.config.%s" .component) .root | fromYaml -}}
{{- if $own.Error }}{{ fail $own.Error }}{{ end -}}
{{- $sections := concat (list "cluster" "client" "security" "log") (get (include "holdmq.sections" . | fromYaml) .component) -}}
{{- range $section := $sections -}}
{{- $keys := deepCopy (default dict (get $given $section)) -}}
{{- range $key, $value := default dict (get $own $section) -}}
{{- if and (hasKey $keys $key) (not (kindIs "map" $value)) -}}
{{- fail (printf "config.%s.%s is set by the chart; see its values" $section $key) -}}
{{- end -}}
{{- if kindIs "map" $value -}}
{{- range $inner, $_ := $value -}}
{{- if hasKey (default dict (get $keys $key)) $inner -}}
{{- fail (printf "config.%s.%s.%s is set by the chart; see its values" $section $key $inner) -}}
{{- end -}}
{{- end -}}
{{- $value = merge $value (default dict (get $keys $key)) -}}
{{- end -}}
{{- $_ := set $keys $key $value -}}
{{- end -}}
{{- if and (eq $section "log") (not (hasKey $keys "format")) -}}
{{- $_ := set $keys "format" "json" -}}
{{- end -}}
{{- if $keys -}}
{{ printf "[%s]\n" $section }}
{{- range $key, $value := $keys -}}
{{- /* A list that has nothing in it has become null on its way here. */ -}}
{{- if not (kindIs "invalid" $value) }}{{ printf "%s = %s\n" $key (include "holdmq.toml" $value) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* How a component shows who it is: dict root, role. */}}
{{- define "holdmq.config.client" -}}
client:
  registries:
    {{- range $index := until (int .root.Values.registry.replicas) }}
    - {{ printf "%s-registry-%d.%s:9876" (include "holdmq.fullname" $.root) $index (include "holdmq.domain" (dict "root" $.root "service" "registry")) }}
    {{- end }}
  {{- if .role }}
  access_key: {{ .role }}
  secret_file: /run/secrets/holdmq/{{ .role }}.secret
  {{- end }}
  {{- if .root.Values.tls.enabled }}
  tls_ca: /run/secrets/tls/ca.crt
  {{- end }}
{{- end }}

{{/* What registries and brokers ask of others. */}}
{{- define "holdmq.config.security" -}}
security:
  keys_file: /run/secrets/holdmq/keys.toml
  allow_anonymous: false
  {{- if .Values.tls.enabled }}
  tls_cert: /run/secrets/tls/tls.crt
  tls_key: /run/secrets/tls/tls.key
  {{- end }}
{{- end }}

{{- define "holdmq.config.registry" -}}
{{ include "holdmq.config.security" . }}
{{ include "holdmq.config.client" (dict "root" . "role" "broker") }}
registry:
  bind: {{ .Values.bind | quote }}
  port: 9876
  admin_bind: {{ .Values.bind | quote }}
  admin_port: 9877
  data_dir: /var/lib/holdmq/registry
{{- end }}

{{- define "holdmq.config.broker" -}}
{{ include "holdmq.config.security" . }}
{{ include "holdmq.config.client" (dict "root" . "role" "broker") }}
broker:
  bind: {{ .Values.bind | quote }}
  port: 10911
  admin_bind: {{ .Values.bind | quote }}
  admin_port: 10913
storage:
  data_dir: /var/lib/holdmq/store
  {{- if eq .Values.broker.engine "kv" }}
  engine: kv
  {{- with .Values.broker.kv }}
  kv:
    prefix: {{ .prefix }}
    min_replicas: {{ .minReplicas }}
    {{- with .url }}
    url: {{ . }}
    {{- end }}
    {{- if .caKey }}
    ca_file: /run/secrets/kv/{{ .caKey }}
    {{- end }}
  {{- end }}
  {{- end }}
{{- if gt (int .Values.broker.copies) 1 }}
replication:
  bind: {{ .Values.bind | quote }}
  port: 10912
  min_in_sync: {{ int .Values.broker.minInSync | default (ternary 2 1 (gt (int .Values.broker.copies) 2)) }}
coordination:
  {{- with .Values.broker.coordination }}
  kind: {{ .kind }}
  {{- if eq .kind "etcd" }}
  etcd:
    {{- with .etcd }}
    urls: {{ toJson .urls }}
    {{- with .user }}
    user: {{ . }}
    {{- end }}
    {{- range $key, $file := dict "password_file" .passwordKey "tls_ca" .caKey "tls_cert" .certKey "tls_key" .keyKey }}
    {{- with $file }}
    {{ $key }}: /run/secrets/etcd/{{ . }}
    {{- end }}
    {{- end }}
    {{- end }}
  {{- end }}
  {{- end }}
{{- end }}
{{- end }}

{{/* A listener for clients from outside: dict root, name, kind, port. */}}
{{- define "holdmq.listener" -}}
{{- $mqtt := .root.Values.mqtt -}}
- name: {{ .name }}
  kind: {{ .kind }}
  bind: {{ .root.Values.bind | quote }}
  port: {{ .port }}
  {{- if has .kind (list "tls" "wss") }}
  tls_cert: /run/secrets/mqtt-tls/tls.crt
  tls_key: /run/secrets/mqtt-tls/tls.key
  {{- if ne $mqtt.tls.clientCertificates "none" }}
  tls_client_ca: /run/secrets/mqtt-clients/ca.crt
  {{- if eq $mqtt.tls.clientCertificates "required" }}
  require_client_certificate: true
  {{- end }}
  {{- end }}
  {{- end }}
  {{- if has .kind (list "ws" "wss") }}
  ws_path: {{ $mqtt.websocket.path }}
  {{- with $mqtt.websocket.origins }}
  ws_origins: {{ toJson . }}
  {{- end }}
  {{- end }}
  {{- if $mqtt.proxyProtocol.enabled }}
  proxy: true
  proxy_networks: {{ toJson $mqtt.proxyProtocol.networks }}
  {{- end }}
{{- end }}

{{- define "holdmq.config.gateway" -}}
{{- $mqtt := .Values.mqtt -}}
{{ include "holdmq.config.client" (dict "root" . "role" "gateway") }}
gateway:
  bind: {{ .Values.bind | quote }}
  port: 1883
  admin_bind: {{ .Values.bind | quote }}
  admin_port: 10914
  workers: {{ .Values.gateway.workers }}
  connections_max: {{ include "holdmq.workerConnections" . }}
  drain_rate: {{ include "holdmq.workerDrainRate" . }}
  drain_s: {{ include "holdmq.drainSeconds" . }}
  {{- with .Values.gateway }}
  {{- if and (or .autoscaling.enabled .keda.enabled) .shedding.abovePercent }}
  shed_above: {{ ceil (divf (mulf .autoscaling.targetConnections .shedding.abovePercent) 100 .workers) | int }}
  shed_rate: {{ ceil (divf .shedding.ratePerSecond .workers) | int }}
  {{- end }}
  {{- end }}
  server_reference: {{ .Values.gateway.drain.serverReference | quote }}
  drain_is_final: true
  allow_anonymous: {{ $mqtt.allowAnonymous }}
  listeners:
    {{- if and $mqtt.tcp.enabled $mqtt.proxyProtocol.enabled }}
    {{- include "holdmq.listener" (dict "root" . "name" "mqtt" "kind" "tcp" "port" 1885) | nindent 4 }}
    {{- end }}
    {{- if $mqtt.tls.enabled }}
    {{- include "holdmq.listener" (dict "root" . "name" "mqtts" "kind" "tls" "port" 8883) | nindent 4 }}
    {{- end }}
    {{- if $mqtt.websocket.enabled }}
    {{- include "holdmq.listener" (dict "root" . "name" "websocket" "kind" (ternary "wss" "ws" $mqtt.tls.enabled) "port" 8083) | nindent 4 }}
    {{- end }}
{{- with $mqtt.access }}
{{- if .existingSecret }}
access:
  rehash: false
  {{- with .passwordKey }}
  password_file: /run/secrets/mqtt/{{ . }}
  {{- end }}
  {{- with .scramKey }}
  scram_file: /run/secrets/mqtt/{{ . }}
  {{- end }}
  {{- with .aclKey }}
  acl_file: /run/secrets/mqtt/{{ . }}
  {{- end }}
  {{- with .tenantsKey }}
  tenants_file: /run/secrets/mqtt/{{ . }}
  {{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "holdmq.config.tables" -}}
stats:
  admin_bind: {{ .Values.bind | quote }}
  admin_port: 10915
  {{- if .Values.stats.postgresqlSecret }}
  sink: postgresql
  {{- end }}
{{- end }}

{{- define "holdmq.config.stats" -}}
{{ include "holdmq.config.client" (dict "root" . "role" "reader") }}
{{ include "holdmq.config.tables" . }}
  data_dir: /var/lib/holdmq/stats
{{- end }}

{{- define "holdmq.config.console" -}}
{{ include "holdmq.config.client" (dict "root" . "role" "admin") }}
{{ include "holdmq.config.tables" . }}
  data_dir: /var/lib/holdmq-stats/stats
console:
  bind: {{ .Values.bind | quote }}
  port: 8080
  admin_bind: {{ .Values.bind | quote }}
  admin_port: 10916
  data_dir: /var/lib/holdmq/console
  {{- with .Values.console.ingress }}
  {{- if .enabled }}
  origins: [{{ printf "%s://%s" (ternary "https" "http" (not (empty .tlsSecret))) .host | quote }}]
  {{- with .trustedProxies }}
  trusted_proxies: {{ toJson . }}
  {{- end }}
  {{- end }}
  {{- end }}
{{- end }}
