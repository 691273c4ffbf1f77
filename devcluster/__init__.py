"""A real Kubernetes control plane on one machine, for tests and the demo; nothing of the product imports it.

Reading order: `control/cluster` (one cluster from start to end), `network` (where it lives), `programs` (what it
runs), `nodes` (what turns it into a cluster that runs pods), `agent` (how a pod becomes processes), then `prometheus`
and `product` (Lockstep in it, and the demo). `kube` is the API server's client that `agent`, `nodes` and `prometheus`
share. Rooms import downwards only; `.importlinter` has the order.

The programs that run inside a cluster are started by their module's name and share no memory with what started them:
`network.holder`, `network.forward`, `nodes.dns`, `prometheus.discovery` and `agent`.
"""
