"""The API of ServingDeployments: what users write, what the operator writes, and the CRD made from both.

Reading order: `spec`, `rules` (limits that span fields), `status`; then how a field that is declared once (`fields`)
is read by `decode`, `schema` and `docs`.
"""
