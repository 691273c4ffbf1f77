"""One rank of a group, from its start to its exit code."""
