"""What the image, the operator, the chart and the tests may rely on about a worker. Standard library only.

This is the one package that the operator imports from the worker; whatever both sides must agree on stands here once.
Read this file first: paths, ports, exit codes. `serve` declares the options of `lockstep-worker serve` and writes its
command line; `option` is how one option is declared, read, checked and written; `page` prints `docs/options.md`.
"""

from __future__ import annotations

# --- the image and the pods ---------------------------------------------------------------------------------
IMAGE_ROOT = "/opt/lockstep"
"""Where the image keeps Lockstep: `bin/` with the programs, `models/recall` with the small model."""
BUNDLED_MODEL = f"{IMAGE_ROOT}/models/recall"
PROGRAM = f"{IMAGE_ROOT}/bin/lockstep-worker"
MODEL_MOUNT = "/models"
"""Where a pod mounts the volume claim that holds a model."""
USER_ID = 1000
USER_NAME = "lockstep"
USER_HOME = f"/home/{USER_NAME}"
SSH_DIR = f"{USER_HOME}/.ssh"
"""The MPIJob's `sshAuthMountPath`: `id_rsa`, `id_rsa.pub` and `authorized_keys` appear here."""
HOSTFILE = "/etc/mpi/hostfile"
"""Mounted by mpi-operator into the launcher; its presence tells the supervisor that it runs under an MPIJob."""
TERMINATION_LOG = "/dev/termination-log"
"""The supervisor's last words as one JSON object: `reason`, `exitCode`, `rank` (or null), `message`."""

# --- ports --------------------------------------------------------------------------------------------------
HTTP_PORT = 8000
"""The frontend of rank 0: the OpenAI API, health, drain and the frontend's metrics."""
RANK_METRICS_PORT = 9400
"""A rank serves `/metrics` and `/healthz` on this port plus its local rank."""
SSH_PORT = 2222

# --- paths of the frontend ----------------------------------------------------------------------------------
HEALTH_PATH = "/health"
READY_PATH = "/ready"
DRAIN_PATH = "/drain"
METRICS_PATH = "/metrics"
RANK_HEALTH_PATH = "/healthz"

# --- exit codes ---------------------------------------------------------------------------------------------
EXIT_OK = 0
EXIT_FAILED = 1
EXIT_CONFIG = 64
"""The configuration is wrong; starting again with the same one cannot help."""
EXIT_HANG = 86
"""The hang detector ended the group."""
EXIT_RANK_CRASH = 87
"""A rank's loop raised."""
EXIT_FRONTEND = 88
"""The frontend process died."""
EXIT_REASONS = {
    EXIT_FAILED: "Failed",
    EXIT_CONFIG: "InvalidConfiguration",
    EXIT_HANG: "Hang",
    EXIT_RANK_CRASH: "RankCrash",
    EXIT_FRONTEND: "FrontendDied",
}
"""The `reason` that a group's `lastFailure` shows for an exit code; codes above 128 are `Signal<n>`."""

# --- metrics ------------------------------------------------------------------------------------------------
METRIC_PREFIX = "lockstep_"


def exit_reason(code: int) -> str:
    """Name an exit code in one CamelCase word, as `lastFailure.reason` and the termination message show it."""
    if code == EXIT_OK:
        return "LauncherExited"
    if code > 128:
        return f"Signal{code - 128}"
    return EXIT_REASONS.get(code, "Failed")


def serve_command(
    *,
    model: str,
    served_model_name: str,
    tensor_parallel: int = 1,
    data_parallel: int = 1,
    max_model_len: int | None = None,
    dtype: str | None = None,
    max_batch_size: int | None = None,
    max_num_tokens: int | None = None,
    kv_cache_memory_fraction: float | None = None,
    overlap: bool = True,
    hang_timeout_s: float | None = None,
    drain_timeout_s: float | None = None,
    extra_args: tuple[str, ...] = (),
) -> list[str]:
    """Build the launcher container's command line; `None` leaves a flag out, so that the worker's default holds.

    A test parses the result with the worker's own parser, so that neither side can drift.
    """
    options = {
        "--model": model,
        "--served-model-name": served_model_name,
        "--tensor-parallel": tensor_parallel,
        "--data-parallel": data_parallel,
        "--max-model-len": max_model_len,
        "--dtype": dtype,
        "--max-batch-size": max_batch_size,
        "--max-num-tokens": max_num_tokens,
        "--kv-cache-memory-fraction": kv_cache_memory_fraction,
        "--hang-timeout": hang_timeout_s,
        "--drain-timeout": drain_timeout_s,
    }
    command = [f"{IMAGE_ROOT}/bin/lockstep-worker", "serve", "--host", "0.0.0.0"]
    for flag, value in options.items():
        if value is not None:
            command += [flag, str(value)]
    if not overlap:
        command.append("--no-overlap")
    return [*command, *extra_args]


def sshd_command() -> list[str]:
    """Build the worker container's command line: an ssh server as `USER_ID` on `SSH_PORT`, waiting for mpirun."""
    return [PROGRAM, "sshd"]
