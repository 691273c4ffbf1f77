"""The node agent: a small kubelet that runs the pods of several nodes as real processes on one machine.

Reading order: `kubelet` (which pods are ours), `pods` (one pod's life), `containers` (one container's life), `plan`
(what a container gets), `sandbox` (the command lines that make it so). It knows nothing of Lockstep: images are
directories that `devcluster.images` prepares.

What it leaves out: limits on resources (there are no cgroups), `kubectl exec` and `port-forward`, events. A pod with
a persistent volume claim, a namespace of the host or a sidecar init container fails and names the field.
Processes never gain privileges from a setuid program, whatever `allowPrivilegeEscalation` says.
"""
