{{/* The operator's image: a digest takes the place of the tag. */}}
{{- define "rljob.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag }}
{{- end -}}
{{- end -}}

{{- define "rljob.pullSecrets" -}}
{{- range .Values.image.pullSecrets }}
- name: {{ . | quote }}
{{- end }}
{{- end -}}

{{/* The server of jobs. Pods of all namespaces with jobs reach it by this name. */}}
{{- define "rljob.natsUrl" -}}
{{- if and .Values.nats.install .Values.nats.url -}}
{{- fail "nats.url is set, and nats.install is true: set nats.install to false to use a NATS server of yours" -}}
{{- else if .Values.nats.url -}}
{{ .Values.nats.url }}
{{- else if not .Values.nats.install -}}
{{- fail "nats.url is empty, and nats.install is false: give the URL of your NATS server, nats://host:4222" -}}
{{- else if not .Values.nats.authentication -}}
{{- fail "nats.authentication is false, and nats.install is true: the server of this chart asks for credentials" -}}
{{- else if eq .Values.scope "Namespace" -}}
tls://nats:4222
{{- else -}}
tls://nats.{{ .Release.Namespace }}:4222
{{- end -}}
{{- end -}}

{{- define "rljob.roleKind" -}}
{{ if eq .Values.scope "Cluster" }}ClusterRole{{ else }}Role{{ end }}
{{- end -}}

{{/* A Job's template cannot be changed: each upgrade has a Job of its own. */}}
{{- define "rljob.upgrade" -}}
{{ if .Release.IsUpgrade }}-{{ .Release.Revision }}{{ end }}
{{- end -}}

{{/* The value of a variable. Helm reads numbers of files as floats. */}}
{{- define "rljob.text" -}}
{{ if kindIs "string" . }}{{ . }}{{ else }}{{ int64 . }}{{ end }}
{{- end -}}
