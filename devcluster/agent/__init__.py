"""The node agent: a small kubelet that runs the pods of several nodes as real processes on one machine.

Reading order: `kubelet` (which pods are ours), `pods` (one pod's life), `containers` (one container's life), `plan` (what
a container gets), `sandbox` (the command lines that make it so). It knows nothing of Lockstep: images are directories
that `devcluster.images` prepares.

What it leaves out: resource limits (no cgroups), persistent volume claims, the host's namespaces for pods, sidecar init
containers, `kubectl exec` and `port-forward`, events. A pod that needs one of the first four fails and says so, except for
limits. Processes never gain privileges by a setuid program, whatever `allowPrivilegeEscalation` says.
"""
