"""The resource itself: what users write (`spec`), what the operator writes (`record`), and the CRD generated from both.

`fields` says how a field is declared once; `decode`, `schema`, `rules` and `docs` read the declarations.
"""
