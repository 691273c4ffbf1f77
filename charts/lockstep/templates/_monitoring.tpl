{{/*
  lockstep.hasPrometheus   "true" where the cluster serves the kinds of the Prometheus operator
  lockstep.rankRelabelings podmonitor-ranks: who a rank is, from its pod's labels
  lockstep.rankPorts       podmonitor-ranks: the frontend's port, and the metrics ports of the ranks of one pod
*/}}

{{- define "lockstep.hasPrometheus" -}}
{{- if .Capabilities.APIVersions.Has "monitoring.coreos.com/v1" -}}true{{- end -}}
{{- end -}}

{{- define "lockstep.rankRelabelings" -}}
{{- range $label := list "deployment" "role" "group" }}
- sourceLabels: [__meta_kubernetes_pod_label_serving_lockstep_dev_{{ $label }}]
  targetLabel: {{ $label }}
{{- end }}
{{- end -}}

{{- define "lockstep.rankPorts" -}}
{{- range $local := until 8 }}
- metrics-{{ $local }}
{{- end }}
- http
{{- end -}}
