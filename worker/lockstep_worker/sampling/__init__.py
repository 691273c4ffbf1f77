"""From logits to tokens and finish codes, on the device, one vectorised call a step.

`columns` holds every request's parameters by slot and `counts` its tokens, `logits` shapes the distribution, `sampler`
draws, `device` does so in kernels, `finish` says which rows ended, `logprobs` what the model itself thought of a draw.
"""
