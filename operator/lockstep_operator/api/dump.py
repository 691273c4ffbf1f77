"""Write objects as YAML that a person can read: no anchors, keys in their own order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        """Write a part that occurs twice twice."""
        return True


def dump_yaml(documents: Iterable[Any]) -> str:
    """Write documents, separated by `---`."""
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=120)
