"""How arrays of the host come to the device, without anybody waiting.

`buffers` is for what every run brings: memory that outlives the run, at the same addresses. `upload` is for what comes
now and then, such as a newcomer's rows.
"""
