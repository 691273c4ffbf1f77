"""Where the checkout, the cache and the Go modules lie; knows no cluster."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""The checkout: programs of this package run as `python -m devcluster...` from here."""

CACHE = ROOT / ".cache" / "devcluster"
"""Git-ignored: built servers, downloaded clients and the state of clusters that a person starts."""

GO_MODULES = ROOT / "devcluster" / "go"
