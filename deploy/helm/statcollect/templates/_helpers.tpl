{{- define "statcollect.name" -}}
{{- if contains "statcollect" .Release.Name -}}
{{ .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-statcollect" .Release.Name | trunc 52 | trimSuffix "-" }}
{{- end -}}
{{- end -}}

{{- define "statcollect.selector" -}}
app.kubernetes.io/name: statcollect
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "statcollect.labels" -}}
{{ include "statcollect.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "statcollect.image" -}}
{{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}
{{- end -}}

{{- define "statcollect.locked" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}
