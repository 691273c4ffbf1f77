"""What goes on over time, from a pod's binding to its deletion.

Reading order: `pod` (one pod's life), `container` (one container's life), `sources` (reads what the pod names),
`publisher` (writes its status, the only place that does).
"""
