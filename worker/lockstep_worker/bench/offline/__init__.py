"""The step loop by itself: no HTTP, no link, no other rank, and weights drawn at random.

Read `session` first: requests go in as a list and tokens are counted where they come out; what lies between is the
product's own loop, put together by the product's own `rank/assemble`. `decode` times a decode step with it, `loop` what
the host pays where the device costs nothing, and `profile` shows where a step's time goes. `shapes` names the models,
`network` draws their weights.
"""
