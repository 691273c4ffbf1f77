"""Where a cluster lives: namespaces without an uplink, the addresses in them, and the one way in from the host.

Reading order: `addresses`, `netns` (makes and enters the namespaces), `holder` (the process they live and die with),
`forward` (a port of the host's loopback that leads in). Knows no server and no pod.
"""
