"""What `plan` and `status` must see alike. Pure; no client, no clock.

Reading order: `state` (what was observed), `health` (is a group ready or broken, and why), `revision` (does it have to
be replaced), `places` (which groups stay), `backoff` (when may a broken one be replaced).
"""
