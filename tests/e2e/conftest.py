from support.cluster.cluster import cluster_with_nodes, start_cluster  # noqa: F401
