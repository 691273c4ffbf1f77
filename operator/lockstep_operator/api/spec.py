"""What a user writes: the ServingDeployment's spec as frozen dataclasses, with every limit.

The CRD is generated from this file. A field that exists here has its effect; nothing is accepted and ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from lockstep_operator import names
from lockstep_operator.api import decode
from lockstep_operator.api.fields import Quantity, Rule, described
from lockstep_operator.api.rules import (
    ENGINE_RULES,
    MAX_GROUPS,
    MODEL_RULES,
    NAME_RULES,
    PARALLELISM_RULES,
    ROLE_RULES,
    SPEC_RULES,
)
from lockstep_operator.errors import SpecError

DNS_LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
NO_SPACE = r"^\S+$"


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Which model is served, and under what name."""

    RULES: ClassVar[tuple[Rule, ...]] = MODEL_RULES
    source: str = described(
        "Where the model is: an absolute path in the image, or `pvc://claim/path` in a PersistentVolumeClaim of the "
        "same namespace, which is mounted read-only.",
        max_length=512,
    )
    served_name: str = described(
        "The name that clients send as `model`.", max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:-]*$"
    )
    max_model_len: int | None = described(
        "Most tokens of prompt and answer together. Unset: what the model's own configuration says.",
        default=None,
        minimum=1,
        maximum=16777216,
    )
    dtype: str | None = described(
        "Number format of weights and activations. Unset: what the model's own configuration says.",
        default=None,
        enum=("bfloat16", "float16", "float32"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """How one group spreads the model over its ranks, one rank per GPU."""

    RULES: ClassVar[tuple[Rule, ...]] = PARALLELISM_RULES
    tensor: int = described("Ranks that share every layer; at most one NVL72 domain.", default=1, minimum=1, maximum=72)
    pipeline: int = described("Stages of layers. Only 1 is supported yet.", default=1, minimum=1, maximum=72)
    data: int = described("Copies of the attention part. Only 1 is supported yet.", default=1, minimum=1, maximum=72)
    expert: int = described("Ranks that share the experts. Only 1 is supported yet.", default=1, minimum=1, maximum=72)


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Limits of the executor. A field that is unset leaves the worker's own default."""

    RULES: ClassVar[tuple[Rule, ...]] = ENGINE_RULES
    max_batch_size: int | None = described(
        "Most requests that run in one step.", default=None, minimum=1, maximum=65536
    )
    max_num_tokens: int | None = described("Most tokens in one step.", default=None, minimum=1, maximum=1048576)
    kv_cache_memory_fraction: float | None = described(
        "Share of the memory left beside the weights that the key-value cache takes.",
        default=None,
        minimum=0.01,
        maximum=1.0,
    )
    overlap: bool = described("Begin a step before the previous step's tokens are collected.", default=True)
    extra_args: tuple[str, ...] = described(
        "More flags for `lockstep-worker serve`, after the ones that the operator sets.",
        default=(),
        max_items=32,
        max_length=256,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HangDetector:
    """When a group that stands still is ended."""

    timeout_seconds: int = described(
        "A rank without progress for so long, while not paused, ends its group. 0 is off.",
        default=300,
        minimum=0,
        maximum=86400,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What each pod of a group asks for, apart from its GPUs."""

    requests: dict[str, Quantity] = described("Amounts to reserve, such as `cpu: 8`.", factory=dict, max_items=16)
    limits: dict[str, Quantity] = described(
        "Amounts never to exceed, such as `memory: 256Gi`.", factory=dict, max_items=16
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Toleration:
    """A taint that pods accept, as in a pod's own `tolerations`."""

    key: str | None = described("The taint's key; unset with `operator: Exists` means every key.", default=None)
    operator: str = described("How key and value are compared.", default="Equal", enum=("Equal", "Exists"))
    value: str | None = described("The taint's value.", default=None, max_length=63)
    effect: str | None = described(
        "The taint's effect; unset means every effect.",
        default=None,
        enum=("NoSchedule", "PreferNoSchedule", "NoExecute"),
    )
    toleration_seconds: int | None = described(
        "How long a NoExecute taint is accepted; unset means for ever.", default=None, minimum=0, maximum=604800
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """A named part of the deployment: groups that all look alike."""

    RULES: ClassVar[tuple[Rule, ...]] = ROLE_RULES
    name: str = described(
        "The role's name, part of its children's names. By another name it is another role, with groups of its own.",
        max_length=30,
        pattern=DNS_LABEL,
    )
    replicas: int | None = described(
        "How many groups the role has. Unset: `spec.replicas`; exactly one role must leave it unset.",
        default=None,
        minimum=0,
        maximum=MAX_GROUPS,
    )
    type: str = described(
        "What the role does. Only `aggregated` (prompt and answer in one group) is supported yet.",
        default="aggregated",
        enum=("aggregated", "prefill", "decode"),
    )
    parallelism: Parallelism = described("How one group spreads the model.", factory=Parallelism)
    gpus_per_node: int = described(
        "GPUs that a group takes of each node; the number of nodes follows.", default=4, minimum=1, maximum=16
    )
    engine: Engine = described("Limits of the executor.", factory=Engine)
    hang_detector: HangDetector = described("When a group that stands still is ended.", factory=HangDetector)
    resources: Resources = described("What each pod asks for, apart from its GPUs.", factory=Resources)
    node_selector: dict[str, str] = described(
        "Labels that a node must have.", factory=dict, max_items=16, max_length=63
    )
    tolerations: tuple[Toleration, ...] = described(
        "Taints that pods accept, besides `nvidia.com/gpu` and `kubernetes.io/arch=arm64`.", default=(), max_items=16
    )

    @property
    def slots(self) -> int:
        """Ranks on each node."""
        return min(self.parallelism.tensor, self.gpus_per_node)

    @property
    def num_nodes(self) -> int:
        """Nodes (and so pods) of one group."""
        return self.parallelism.tensor // self.slots


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """How a change reaches running groups."""

    max_unavailable: int = described(
        "Groups that a change may take out of service at once. No group is added beforehand: a full rack has no room.",
        default=1,
        minimum=1,
        maximum=100,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """How often and how fast a broken group is replaced."""

    max_restarts: int = described(
        "Replacements of one group within the window; after that the deployment is Degraded until it has passed.",
        default=5,
        minimum=0,
        maximum=100,
    )
    window_seconds: int = described("Length of the window.", default=3600, minimum=60, maximum=604800)
    backoff_seconds: int = described(
        "Wait before the first replacement; it doubles with every further one within the window, up to 10 minutes.",
        default=10,
        minimum=0,
        maximum=600,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PullSecret:
    """The name of a Secret with which images are pulled."""

    name: str = described("The Secret's name.", pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What is to be served, by which groups."""

    RULES: ClassVar[tuple[Rule, ...]] = SPEC_RULES
    model: Model = described("The model.")
    image: str = described("The worker's image.", max_length=512, pattern=NO_SPACE)
    image_pull_policy: str = described(
        "When the image is pulled.", default="IfNotPresent", enum=("Always", "IfNotPresent", "Never")
    )
    image_pull_secrets: tuple[PullSecret, ...] = described(
        "Secrets with which the image is pulled.", default=(), max_items=8, map_key="name"
    )
    replicas: int = described(
        "How many groups the role has that sets no number of its own. It stands here because the scale subresource "
        "needs a fixed place.",
        default=1,
        minimum=0,
        maximum=MAX_GROUPS,
    )
    roles: tuple[Role, ...] = described(
        "The deployment's parts. Each has groups and a Service `<deployment>-<role>` of its own, and each serves the "
        "model by itself: nothing routes between roles.",
        max_items=8,
        map_key="name",
    )
    rollout: Rollout = described("How a change reaches running groups.", factory=Rollout)
    restart_policy: RestartPolicy = described(
        "How often and how fast a broken group is replaced.", factory=RestartPolicy
    )
    drain_timeout_seconds: int = described(
        "How long a group may finish its requests before it is stopped.", default=120, minimum=0, maximum=3600
    )
    paused: bool = described(
        "Freeze the groups: none is made, replaced or removed until this is false again, and a role that is no longer "
        "named, or is named otherwise, keeps its Service while it has groups. Deletion still works.",
        default=False,
    )

    def count_replicas(self, role: Role) -> int:
        """Count the groups that a role is to have."""
        return self.replicas if role.replicas is None else role.replicas


def parse_deployment(raw: dict[str, Any]) -> Spec:
    """Parse a whole ServingDeployment object, its name included.

    Raises:
        SpecError: lists every fault, each with its field's path.
    """
    problems: list[str] = []
    spec = None
    try:
        spec = decode.parse(Spec, raw.get("spec"), "spec")
    except SpecError as error:
        problems += error.problems
    roles = [role.name for role in spec.roles] if spec else []
    name = str(raw.get("metadata", {}).get("name", ""))
    problems += [rule.message for rule in NAME_RULES if not rule.check((name, roles))]
    if problems or spec is None:
        raise SpecError(problems)
    return spec


def find_identity_faults(raw: dict[str, Any]) -> list[str]:
    """List what makes an object something other than a ServingDeployment; empty when it is one."""
    expected = {"apiVersion": f"{names.API_GROUP}/{names.API_VERSION}", "kind": names.KIND}
    return [f"{key}: must be {value}, not {raw.get(key)!r}" for key, value in expected.items() if raw.get(key) != value]
