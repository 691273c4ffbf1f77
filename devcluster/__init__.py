"""A real Kubernetes control plane on one machine, for tests and the demo; nothing of the product imports it."""
