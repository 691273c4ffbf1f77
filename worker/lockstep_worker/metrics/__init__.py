"""What a worker tells Prometheus.

Read `tables` (every metric), `families` (the objects that code writes to), `instruments` (how one is made cheap, and why
it never raises), `page` (docs/metrics.md).
"""
