"""For tests of kernels: compiled for GPUs that are not here."""
