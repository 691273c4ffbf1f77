"""The KV cache: `pool` says which blocks are whose (host only, no torch), `tensors` holds them on the device."""
