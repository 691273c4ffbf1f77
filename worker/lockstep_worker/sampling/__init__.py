"""From logits to tokens and finish codes, on the device, one vectorised call a step.

`columns` holds every request's parameters by slot, `logits` shapes the distribution, `sampler` draws, `finish` says
which rows ended.
"""
