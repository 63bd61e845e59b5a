{{- define "icekeep.name" -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "icekeep.labels" -}}
app.kubernetes.io/name: icekeep
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "icekeep.account" -}}
{{- .Values.serviceAccount.name | default (ternary (include "icekeep.name" .) "default" .Values.serviceAccount.create) -}}
{{- end -}}
