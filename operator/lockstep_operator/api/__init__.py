"""The resource's API: what users write (`spec`), what the operator writes (`status`), and the CRD made from both.

Reading order: `spec`, `rules` (limits that span fields), `status`; then how a field that is declared once (`fields`)
is read by `decode`, `schema` and `docs`.
"""
