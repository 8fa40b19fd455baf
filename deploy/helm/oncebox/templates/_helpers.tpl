{{- define "oncebox.name" -}}
{{- if contains "oncebox" .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-oncebox{{ end -}}
{{- end }}

{{- define "oncebox.image" -}}
{{- .Values.image.repository -}}
{{- if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end -}}
{{- end }}

{{/* Labels of an object; the argument is (list $ "relay"). */}}
{{- define "oncebox.labels" -}}
{{- $root := index . 0 -}}
{{ include "oncebox.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ $root.Chart.Name }}-{{ $root.Chart.Version }}
{{- end }}

{{- define "oncebox.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: oncebox
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{/* What each pod has: no right that it does not need. */}}
{{- define "oncebox.pod" -}}
automountServiceAccountToken: false
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* What each container has. */}}
{{- define "oncebox.container" -}}
image: {{ include "oncebox.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
resources: {{ toYaml .Values.resources | nindent 2 }}
volumeMounts:
  - {name: oncebox-config, mountPath: /etc/oncebox, readOnly: true}
  - {name: oncebox-secrets, mountPath: /run/secrets/oncebox, readOnly: true}
{{- end }}

{{- define "oncebox.environment" -}}
- {name: ONCEBOX_CONFIG, value: /etc/oncebox/oncebox.toml}
# The default is the container's loopback interface, where no probe sees it.
- {name: ONCEBOX_HTTP_LISTEN, value: "0.0.0.0:9464"}
- {name: ONCEBOX_LOG_FORMAT, value: json}
{{- range $name, $value := .Values.environment }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}

{{/* The volumes of relays; a chart of a service includes them for the sidecar. */}}
{{- define "oncebox.volumes" -}}
- name: oncebox-config
  configMap: {name: {{ include "oncebox.name" . }}}
- name: oncebox-secrets
  secret: {secretName: {{ .Values.configSecret }}}
{{- end }}

{{/*
The relay as a native sidecar, for `initContainers` of a service: it is there before the service
begins and after it has ended. It has neither a startup nor a readiness probe: they would make the
service wait for NATS, and to go on without NATS is what an outbox is for.
In your chart: {{ include "oncebox.sidecar" .Subcharts.oncebox }}
*/}}
{{- define "oncebox.sidecar" -}}
- name: oncebox-relay
  restartPolicy: Always
  args: [relay]
  env: {{ include "oncebox.environment" . | nindent 4 }}
  ports: [{name: oncebox, containerPort: 9464}]
  livenessProbe:
    httpGet: {path: /livez, port: oncebox}
    # The longest start.
    initialDelaySeconds: 120
    periodSeconds: 10
    timeoutSeconds: 5
    failureThreshold: 3
  {{- include "oncebox.container" . | nindent 2 }}
{{- end }}
