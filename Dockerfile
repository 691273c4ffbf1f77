# syntax=docker/dockerfile:1
# The images of Lockstep: target `worker` (a rank's pod: launcher or sshd) and target `operator`.
#   docker buildx build --target worker   --platform linux/amd64,linux/arm64 -t lockstep-worker:dev .
#   docker buildx build --target operator --platform linux/amd64,linux/arm64 -t lockstep-operator:dev .
# Paths, user and ports are those of worker/lockstep_worker/contract/; tests/charts/test_dockerfile.py compares them.
#
# Nothing here names an architecture: the pins resolve to wheels for both, and torch's wheels bring the CUDA libraries.
# What was run: every RUN line, as root in an overlay of Debian 12 on amd64; in the result, as uid 1000, the operator's
# help and the worker, which served the small model on two ranks (Open MPI 4.1) and drained; `uv pip compile` of both
# pin files for aarch64. What was not: a container engine, arm64, a GPU inside a container.

FROM python:3.11-slim-bookworm AS base
ENV PATH=/opt/lockstep/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONSAFEPATH=1 \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
RUN useradd --uid 1000 --user-group --create-home --home-dir /home/lockstep --shell /bin/sh lockstep \
    && install -d -o lockstep -g lockstep -m 0700 /home/lockstep/.ssh

# Our own wheel, once: it is pure Python and the same for both targets and architectures.
FROM base AS wheel
WORKDIR /src
COPY pyproject.toml README.md ./
COPY operator operator
COPY worker worker
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM base AS worker-env
COPY requirements/worker.txt /tmp/requirements.txt
RUN python -m venv /opt/lockstep && pip install --no-cache-dir --no-deps -r /tmp/requirements.txt
COPY --from=wheel /wheels /wheels
RUN pip install --no-cache-dir --no-deps /wheels/*.whl && rm /opt/lockstep/bin/lockstep-operator

FROM base AS operator-env
COPY requirements/operator.txt /tmp/requirements.txt
RUN python -m venv /opt/lockstep && pip install --no-cache-dir --no-deps -r /tmp/requirements.txt
COPY --from=wheel /wheels /wheels
RUN pip install --no-cache-dir --no-deps /wheels/*.whl && rm /opt/lockstep/bin/lockstep-worker

# Open MPI is Debian's 4.1 and not the wheel's 5: `orted` stands on the PATH that sshd gives to mpirun's remote shell,
# mpi-operator's OMPI_MCA_orte_* settings are version 4's, ranks end with a killed mpirun, and Debian mends it.
# gcc and libc6-dev: Triton compiles its kernels' launchers with a C compiler when a model is captured.
# No tini: the pods' `command` takes the ENTRYPOINT's place, so it would not run; the supervisor and sshd handle signals
# and reap children themselves.
FROM base AS worker
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openmpi-bin openssh-server openssh-client gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_*
# A waiting OpenMP thread must not spin: with busy cores that made a step twelve times slower.
ENV OMP_WAIT_POLICY=PASSIVE \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=worker-env /opt/lockstep /opt/lockstep
COPY models/recall /opt/lockstep/models/recall
USER 1000:1000
WORKDIR /home/lockstep
EXPOSE 8000 9400 2222
ENTRYPOINT ["/opt/lockstep/bin/lockstep-worker"]
CMD ["serve", "--host", "0.0.0.0", "--model", "/opt/lockstep/models/recall"]

FROM base AS operator
COPY --from=operator-env /opt/lockstep /opt/lockstep
USER 1000:1000
WORKDIR /home/lockstep
EXPOSE 8080
ENTRYPOINT ["/opt/lockstep/bin/lockstep-operator"]
CMD ["run"]
