{{- define "gateway.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "gateway.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 54 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "gateway.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 54 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 54 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "gateway.selector" -}}
app.kubernetes.io/name: {{ include "gateway.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "gateway.labels" -}}
{{ include "gateway.selector" . }}
app.kubernetes.io/component: {{ .Values.mode }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "gateway.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "gateway.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "gateway.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* Where it listens: a sidecar for its own pod alone. */}}
{{- define "gateway.host" -}}
{{- ternary "127.0.0.1" "0.0.0.0" (eq .Values.mode "sidecar") -}}
{{- end -}}

{{/* gateway.yaml: the configuration of the values, with what the chart decides. */}}
{{- define "gateway.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- $listen := default (dict) $config.listen -}}
{{- range $key := list "host" "port" "drainTimeout" -}}
{{- if hasKey $listen $key -}}
{{- fail (printf "config.listen.%s is set by the chart; remove it, and set %s" $key (ternary "drain.timeoutSeconds" "ports.http or sidecar.port" (eq $key "drainTimeout"))) -}}
{{- end -}}
{{- end -}}
{{- $isSidecar := eq .Values.mode "sidecar" -}}
{{- if and $isSidecar (not (hasKey $config "sidecar")) -}}
{{- fail "mode: sidecar needs config.sidecar; add it, such as config.sidecar.producer: {}" -}}
{{- end -}}
{{- if and (eq .Values.kind "Deployment") (regexMatch "instanceId:[^\n]*POD_NAME" (toYaml $config)) -}}
{{- fail "instanceId is the pod's name, which a Deployment changes with each pod; set kind: StatefulSet" -}}
{{- end -}}
{{- if $isSidecar -}}
{{- $_ := unset $config "routes" -}}
{{- end -}}
{{- $host := include "gateway.host" . -}}
{{- $port := ternary .Values.sidecar.port .Values.ports.http $isSidecar -}}
{{- $drain := printf "%ds" (int .Values.drain.timeoutSeconds) -}}
{{- $_ := set $config "listen" (merge (dict "host" $host "port" (int $port) "drainTimeout" $drain) $listen) -}}
{{- toYaml $config -}}
{{- end -}}

{{/* The longest time from the first word to a pod until its last process is gone. */}}
{{- define "gateway.graceSeconds" -}}
{{- $drain := .Values.drain -}}
{{- $work := ternary (int $drain.requestSeconds) 0 (eq .Values.mode "sidecar") -}}
{{- add (int $drain.preStopSeconds) (int $drain.timeoutSeconds) (int $drain.killSeconds) $work (int $drain.spareSeconds) -}}
{{- end -}}

{{- define "gateway.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* The container of the gateway or of the sidecar. */}}
{{- define "gateway.container" -}}
{{- $isSidecar := eq .Values.mode "sidecar" -}}
name: {{ .Values.mode }}
image: {{ include "gateway.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- if $isSidecar }}
# Up before the back end, and ended after it.
restartPolicy: Always
{{- end }}
args: [{{ ternary "sidecar" "run" $isSidecar }}, -c, /etc/gateway/gateway.yaml]
env:
  - name: POD_NAME
    valueFrom:
      fieldRef:
        fieldPath: metadata.name
  # The image's own variable would override the file.
  - name: GATEWAY_LISTEN__HOST
    value: {{ include "gateway.host" . }}
  {{- with .Values.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .Values.envFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if not $isSidecar }}
ports:
  - name: http
    containerPort: {{ .Values.ports.http }}
{{- end }}
resources:
  {{- toYaml .Values.resources | nindent 2 }}
{{- range $name := list "startup" "liveness" "readiness" }}
{{ $name }}Probe:
  {{- if $isSidecar }}
  # The sidecar listens on the pod's loopback, which kubelet does not reach.
  exec:
    command:
      - python
      - -c
      - from urllib.request import urlopen; urlopen('http://127.0.0.1:{{ $.Values.sidecar.port }}/health/{{ ternary "readiness" "liveness" (eq $name "readiness") }}', timeout=2)
  {{- else if eq (dig "listen" "tls" "" $.Values.config | toString) "" }}
  httpGet:
    path: /health/{{ ternary "ready" "live" (eq $name "readiness") }}
    port: http
  {{- else }}
  httpGet:
    path: /health/{{ ternary "ready" "live" (eq $name "readiness") }}
    port: http
    scheme: HTTPS
  {{- end }}
  {{- toYaml (get $.Values.probes $name | merge (ternary (dict "timeoutSeconds" 3) (dict) $isSidecar)) | nindent 2 }}
{{- end }}
{{- if and (not $isSidecar) (gt (int .Values.drain.preStopSeconds) 0) }}
lifecycle:
  # New clients are sent here until the cluster has taken the pod from the Service.
  preStop:
    exec:
      command: [sleep, {{ .Values.drain.preStopSeconds | quote }}]
{{- end }}
securityContext:
  {{- include "gateway.securityContext" . | nindent 2 }}
volumeMounts:
  - name: configuration
    mountPath: /etc/gateway
    readOnly: true
  - name: temporary
    mountPath: /tmp
  {{- with .Values.volumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* The container of the back end, beside which the sidecar runs. */}}
{{- define "gateway.backEnd" -}}
{{- $backEnd := .Values.sidecar.backEnd -}}
name: {{ $backEnd.name }}
image: {{ required "mode: sidecar needs sidecar.backEnd.image, the image of your back end" $backEnd.image | quote }}
ports:
  - name: http
    containerPort: {{ $backEnd.port }}
env:
  - name: SIDECAR
    value: http://127.0.0.1:{{ .Values.sidecar.port }}
  {{- with $backEnd.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with $backEnd.resources }}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if gt (int .Values.drain.preStopSeconds) 0 }}
lifecycle:
  preStop:
    exec:
      command: [sleep, {{ .Values.drain.preStopSeconds | quote }}]
{{- end }}
{{- end -}}
