"""Is the group alive, and how does it end: hang detection, last words, readiness, and each rank's own small server.

Read `hang.py` first, then `abort.py`. Nothing here takes part in a collective: it must work when the ranks do not.
"""
