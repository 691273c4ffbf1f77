"""The node agent: a small kubelet that runs the pods of several nodes as real processes on one machine.

Reading order: `kubelet` (which pods are ours), `pods/pod` (one pod's life), `pods/container` (one container's life),
`machine/plan` (what a container gets), `decisions/sandbox` (the command lines that make it so). `decisions` holds
what is pure, `machine` what touches this machine, `pods` what goes on over time. It knows nothing of Lockstep: images
are directories that `devcluster.nodes.images` prepares.

What it leaves out: limits on resources (there are no cgroups), `kubectl exec` and `port-forward`, events. A pod with
a persistent volume claim, a namespace of the host or a sidecar init container fails and names the field.
Processes never gain privileges from a setuid program, whatever `allowPrivilegeEscalation` says.
"""
