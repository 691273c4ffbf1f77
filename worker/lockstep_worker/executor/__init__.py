"""The step loop of a rank: exchange, route, schedule, forward, collect, update, publish.

Reading order: `loop` (one step, on one screen), `exchange` and `idle` (how ranks meet), `intake` and `routing` (how a
request gets to its queue), then the rooms `schedule` (who runs) and `runner` (what the device does), and back here
`publish` and `report` (what comes of it), `timing`.
"""
