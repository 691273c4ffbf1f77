"""The model and its KV cache. Read `batch`, `forward`, `loader`, then `attention`, `cache` and `parallel`."""
