"""What touches this machine for one pod: its files, network and processes. Knows no API server.

Reading order: `plan` (joins the decisions for one container), `processes` (starts and ends them), `files`, `network`,
`probes` (asks a container how it is), `logs` (serves what containers wrote).
"""
