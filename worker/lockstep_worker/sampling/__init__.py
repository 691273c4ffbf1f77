"""From logits to tokens and finish codes, on the device, one vectorised call a step.

Read `columns` (every request's parameters by slot, and the spare slot) and `counts` (its tokens), `logits` (what shapes
the distribution), `sampler` (the draw and a step's end, in torch: the reference), then `device`, which does both in
two kernels on a GPU. `finish` says which rows ended, `verify` which drafts hold, `logprobs` what the model itself
thought of a draw.
"""
