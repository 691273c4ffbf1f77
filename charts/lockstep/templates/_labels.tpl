{{/*
The only place that builds labels.
  lockstep.selector  deployment, podmonitor-operator: name, instance and component, which never change
  lockstep.labels    every object
  lockstep.labelsAnd objects and pods that values may label too: (list . extra); the chart's own labels win
*/}}

{{- define "lockstep.selector" -}}
app.kubernetes.io/name: {{ include "lockstep.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "lockstep.labels" -}}
{{ include "lockstep.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: lockstep
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "lockstep.labelsAnd" -}}
{{- merge (include "lockstep.labels" (index . 0) | fromYaml) (index . 1) | toYaml -}}
{{- end -}}
