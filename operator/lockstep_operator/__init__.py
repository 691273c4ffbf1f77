"""The control plane: `ServingDeployment` objects in, MPIJob-backed groups out.

Reading order: `resource.spec` (what users write), `reconcile` (observe, plan, apply, status), `plan` (every decision),
`manifests` (every object that is made).
"""
