"""What a control plane needs to run pods: nodes, images, Services and names.

Reading order: `start` (all of it), `images` (what stands for container images), `services` (kube-proxy, and a Service
for DNS), `dns` (the name server, a process of its own) and `hosts` (which names it answers; pure).
"""
