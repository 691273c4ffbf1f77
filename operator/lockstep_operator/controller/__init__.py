"""What wakes a reconciliation, and the workers that do it.

Reading order: `event_source` (which events wake which deployment), `childwatch` (the same for APIs of other products),
`workqueue` (each key once), `controller` (workers, resync, retries).
"""
