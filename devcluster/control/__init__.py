"""The control plane: real etcd, API server, controllers, scheduler and mpi-operator as processes of one cluster.

Reading order: `cluster` (starts and ends it all), `servers` (which command lines), `processes` (one log each, and who
ended by itself), `pki` (their identities), `state` (the folder that belongs to one cluster). Knows no node and no pod.
"""
