"""The control plane: `ServingDeployment` objects in, MPIJob-backed groups out.

Reading order: `reconcile` (one pass: observe, plan, apply, status), `api.spec` (what users write), `plan` (every
decision), `children` (every object that is made), `status` (what people are told), `groups` (what plan and status
must see alike), `observe` and `apply` (the only modules that read and write children), `clients`, `controller` (what
starts a pass).
"""
