"""A role's revision: eight characters that change exactly when its groups have to be replaced.

Hashed are the parts of the spec that a group is rendered from, without those that have their default value, and
`RENDER_VERSION`. So an upgrade of the operator that adds a field or writes the same group in another way replaces no
running group; a change of the rendering that must reach running groups raises `RENDER_VERSION`.
"""

from __future__ import annotations

import hashlib
import json

from lockstep_operator.api.decode import encode_explicit
from lockstep_operator.api.spec import Role, Spec
from lockstep_operator.names import REVISION_LENGTH

RENDER_VERSION = 1
GROUP_FIELDS = ("model", "image", "imagePullPolicy", "imagePullSecrets", "drainTimeoutSeconds")
"""The fields of the spec, apart from the role, that a group is rendered from."""
ROLE_FIELDS_APART = ("replicas",)
"""The fields of a role that no group is rendered from."""


def compute_revision(spec: Spec, role: Role) -> str:
    """Compute a role's revision; it does not depend on replicas, rollout, restart policy or pausing."""
    explicit = encode_explicit(spec)
    inputs = {name: explicit[name] for name in GROUP_FIELDS if name in explicit}
    rendered = {name: value for name, value in encode_explicit(role).items() if name not in ROLE_FIELDS_APART}
    content = {"renderVersion": RENDER_VERSION, "role": rendered, **inputs}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())
    return digest.hexdigest()[:REVISION_LENGTH]
