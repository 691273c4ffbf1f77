{{/*
What the operator may do in the namespaces that it serves: clusterrole.yaml and role.yaml.
No wildcard, no Secret, nothing that the code does not do.
*/}}
{{- define "lockstep.rules" -}}
- apiGroups: [serving.lockstep.dev]
  resources: [servingdeployments]
  # patch: the operator's own finalizer.
  verbs: [get, list, watch, patch]
- apiGroups: [serving.lockstep.dev]
  resources: [servingdeployments/status]
  verbs: [update]
- apiGroups: [serving.lockstep.dev]
  # Owner references with blockOwnerDeletion need this.
  resources: [servingdeployments/finalizers]
  verbs: [update]
- apiGroups: [kubeflow.org]
  resources: [mpijobs]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  # patch: the label that takes a draining launcher out of its Service.
  resources: [pods]
  verbs: [get, list, watch, patch]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create]
{{- end -}}
