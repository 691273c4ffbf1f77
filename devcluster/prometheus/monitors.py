"""PodMonitors as Prometheus scrape jobs, the way prometheus-operator translates them: pure.

Only what the chart's PodMonitors use is known here; a field beyond that is refused, so that nothing is lost in silence.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from devcluster.errors import DevclusterError
from devcluster.kube.objects import Object

_META = "__meta_kubernetes"
_SPEC_FIELDS = {"selector", "namespaceSelector", "podMetricsEndpoints"}
_ENDPOINT_FIELDS = {"port", "path", "interval", "scrapeTimeout", "honorLabels", "relabelings"}


def scrape_configs(pod_monitors: Iterable[Object], targets: Path) -> list[Object]:
    """One scrape job for each endpoint of each PodMonitor; `targets` is the file that `discovery.py` writes.

    The monitors' intervals are left out: Prometheus's global one holds.

    Raises:
        DevclusterError: a monitor uses a field that is not translated here.
    """
    return [
        _job(monitor, number, endpoint, targets)
        for monitor in pod_monitors
        for number, endpoint in enumerate(monitor["spec"]["podMetricsEndpoints"])
    ]


def _job(monitor: Object, number: int, endpoint: Object, targets: Path) -> Object:
    metadata, spec = monitor["metadata"], monitor["spec"]
    _refuse_others(metadata["name"], spec, _SPEC_FIELDS)
    _refuse_others(metadata["name"], endpoint, _ENDPOINT_FIELDS)
    _refuse_others(metadata["name"], spec["selector"], {"matchLabels"})
    relabelling = [
        *_selection(spec["selector"]["matchLabels"]),
        *_namespaces(spec.get("namespaceSelector", {}), metadata["namespace"]),
        *_identity(metadata, endpoint["port"]),
        *(_snake_keys(rule) for rule in endpoint.get("relabelings", [])),
    ]
    return {
        "job_name": f"podMonitor/{metadata['namespace']}/{metadata['name']}/{number}",
        "honor_labels": endpoint.get("honorLabels", False),
        "metrics_path": endpoint.get("path", "/metrics"),
        "file_sd_configs": [{"files": [str(targets)], "refresh_interval": "2s"}],
        "relabel_configs": relabelling,
    }


def _selection(labels: dict[str, str]) -> list[Object]:
    return [
        {
            "action": "keep",
            "source_labels": [f"{_META}_pod_label_{_sanitized(key)}", f"{_META}_pod_labelpresent_{_sanitized(key)}"],
            "regex": f"({re.escape(value)});true",
        }
        for key, value in labels.items()
    ]


def _namespaces(selector: Object, own: str) -> list[Object]:
    if selector.get("any"):
        return []
    names = "|".join(re.escape(name) for name in selector.get("matchNames", [own]))
    return [{"action": "keep", "source_labels": [f"{_META}_namespace"], "regex": names}]


def _identity(metadata: Object, port: str) -> list[Object]:
    return [
        {"action": "keep", "source_labels": [f"{_META}_pod_container_port_name"], "regex": re.escape(port)},
        {"action": "drop", "source_labels": [f"{_META}_pod_phase"], "regex": "(Failed|Succeeded)"},
        {"source_labels": [f"{_META}_namespace"], "target_label": "namespace"},
        {"source_labels": [f"{_META}_pod_container_name"], "target_label": "container"},
        {"source_labels": [f"{_META}_pod_name"], "target_label": "pod"},
        {"target_label": "job", "replacement": f"{metadata['namespace']}/{metadata['name']}"},
        {"target_label": "endpoint", "replacement": port},
    ]


def _snake_keys(rule: Object) -> Object:
    return {re.sub(r"([A-Z])", lambda match: f"_{match[1].lower()}", key): value for key, value in rule.items()}


def _sanitized(key: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_]", "_", key)


def _refuse_others(name: str, mapping: Object, known: set[str]) -> None:
    if others := sorted(set(mapping) - known):
        raise DevclusterError(f"PodMonitor {name}: devcluster does not translate {', '.join(others)}")
