"""The node agent: a small kubelet that runs the pods of several nodes as real processes on one machine.

Reading order: `kubelet` (which pods are ours), `pods` (one pod's life), `containers` (one container's life), `sandbox`
(what a container may see). It knows nothing of Lockstep: images are directories that `devcluster.images` prepares.
"""
