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

{{- define "statcollect.mounts" -}}
- {name: data, mountPath: /var/lib/statcollect}
{{- if .Values.store.secretName }}
- {name: run, mountPath: /run/statcollect}
- {name: store, mountPath: /secrets/store, readOnly: true}
{{- end }}
{{- if .Values.tls.secretName }}
- {name: tls, mountPath: /secrets/tls, readOnly: true}
- {name: tokens, mountPath: /secrets/tokens, readOnly: true}
{{- end }}
{{- end }}

{{- /* Lines of a shell: the store's address in a file that nobody else can read, because other processes see a command line. */ -}}
{{- define "statcollect.storeFiles" -}}
{{- if .Values.store.secretName -}}
umask 077
printf 'store = "%s"\n' "$(cat /secrets/store/dsn)" > /run/statcollect/store.toml
{{- if .Values.store.caKey }}
install -m 0600 /secrets/store/{{ .Values.store.caKey }} /run/statcollect/store-ca.pem
{{- end }}
{{- end -}}
{{- end -}}
