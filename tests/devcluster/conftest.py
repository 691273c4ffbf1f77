from support.cluster.cluster import cluster, cluster_namespace, cluster_with_nodes, start_cluster  # noqa: F401
