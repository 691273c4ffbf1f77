"""The objects that the operator makes, one module a kind: what it looks like, when it differs, how it is deleted.

Reading order: `child` (what is said of a kind), `service` (the shortest kind), `mpijob` with `pods` (a group), `owner`
(whose child it is), `registry` (all kinds; whatever is generic goes through it).
"""
