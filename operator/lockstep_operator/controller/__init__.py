"""What wakes a reconciliation: the queue of deployments' keys, and the watch of MPIJobs that outlives a missing CRD."""
