"""A real Prometheus that sees the cluster's pods as the Prometheus operator's would.

Reading order: `server` (starts it, asks it), `monitors` (PodMonitors as scrape jobs; pure), `discovery` (which pods
there are, a process of its own) and `targets` (how Prometheus is told; pure).
"""
