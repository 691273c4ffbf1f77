"""What a cluster runs that is not written here: found on this machine, installed or built.

Reading order: `tools` (all of it as one value), `debian` (packages), `clients` (kubectl and helm), `build` (the
servers, compiled once from the Go modules in `devcluster/go`). Knows no cluster.
"""
