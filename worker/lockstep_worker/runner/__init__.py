"""The device room: a plan of host integers becomes one forward with sampling behind it, and comes back as tokens.

Read `runner` (run, collect), then `pack` (rows of the slot table behind one another, in the memory of `inputs/buffers`)
and `blocks` (which blocks a slot has, kept on the device): that is an eager run. `graphs` has decodes as programs
that are captured once and replayed, `capture` what makes them so, `warmup` what a rank does before its first request,
`marks` how long the device worked and waited, `capacity` what fits where. Features stay out of the runner: what a
request asks for is the sampler's business, what a layer asks for the attention backend's.
"""
