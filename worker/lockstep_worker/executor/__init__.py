"""The step loop of a rank: exchange, admit, schedule, launch, collect, update, publish.

Reading order: `loop` (one step, on one screen), `exchange` and `idle` (how ranks meet), `routing`, `admission`,
`scheduler` and `slots` (who runs where), `launch` (what the device does), `update` and `publish` (what comes of it).
"""
