"""One cluster: starts the real servers in namespaces of their own, runs clients against them, and ends it all."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from devcluster.control import servers
from devcluster.control.pki import Pki
from devcluster.control.processes import Server, Servers
from devcluster.control.servers import ServerPlan
from devcluster.control.state import RunningCluster, claim, release
from devcluster.errors import CommandError, DevclusterError
from devcluster.network.addresses import API_IP, DNS_IP
from devcluster.network.forward import listening_socket
from devcluster.network.netns import Namespaces
from devcluster.programs.tools import Tools, ensure_tools
from devcluster.progress import Progress, silent

T = TypeVar("T")

READY_TIMEOUT_S = 120.0
"""Generous: on two busy cores all servers need 10 s."""


def host_environment(path: str) -> dict[str, str]:
    """This process's environment with another PATH, and without proxies: they are not in the cluster's network."""
    proxies = {"http_proxy", "https_proxy", "all_proxy"}
    return {**{key: value for key, value in os.environ.items() if key.lower() not in proxies}, "PATH": path}


class Cluster:
    """A control plane in a network namespace without an uplink; a context manager.

    It ends with the process that started it, however that ends, and (a rule of Linux) with the thread that called
    `start`: start it from a thread that lives as long as the cluster.
    """

    def __init__(self, name: str, state_dir: Path, *, tools: Tools | None = None, progress: Progress = silent) -> None:
        """Prepares a cluster that `start` brings up.

        Args:
            name: of the folder for logs and state inside `state_dir`, which belongs to this cluster alone.
            state_dir: an existing or new folder.
            tools: the programs to use; found or built by default.
            progress: takes a line for whatever takes long.
        """
        self.state = (state_dir / name).resolve()
        self._progress = progress
        self._tools = tools
        self._lock: int | None = None
        self._namespaces: Namespaces | None = None
        self._servers: Servers | None = None
        self._pki: Pki | None = None
        self._guests: list[subprocess.Popen[Any]] = []

    def __enter__(self) -> "Cluster":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def tools(self) -> Tools:
        """The programs that this cluster runs."""
        if self._tools is None:
            self._tools = ensure_tools(self._progress)
        return self._tools

    @property
    def kubeconfig(self) -> Path:
        """Credentials of an administrator; they work in the cluster's network and from the host alike."""
        return self.pki.kubeconfig("admin")

    @property
    def pki(self) -> Pki:
        """The identities of this cluster's servers."""
        return self._started(self._pki)

    @property
    def namespaces(self) -> Namespaces:
        """The namespaces that the cluster lives in."""
        return self._started(self._namespaces)

    @property
    def servers(self) -> Servers:
        """The running processes, for more of them."""
        return self._started(self._servers)

    def start(self) -> None:
        """Starts all servers and returns when they are ready.

        Raises:
            DevclusterError: a server did not start; nothing is left running.
        """
        tools = self.tools
        self.state.mkdir(parents=True, exist_ok=True)
        self._lock = claim(self.state)
        try:
            self._make_namespaces(tools)
            self._start_api(tools)
            self._start_controllers(tools)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends every process of the cluster; logs stay in `state`. Doing it twice is harmless.

        Raises:
            ServerError: a process does not end.
        """
        try:
            for guest in self._guests:
                guest.kill()
            if self._namespaces is not None:
                self._namespaces.destroy()
            if self._servers is not None:
                self._servers.reap()
        finally:
            if self._lock is not None:
                release(self.state, self._lock)
            self._namespaces = self._servers = self._pki = self._lock = None
            self._guests = []

    def environment(self) -> dict[str, str]:
        """The environment of client programs: KUBECONFIG, and kubectl and helm first on PATH."""
        return {**host_environment(self.tools.path), "KUBECONFIG": str(self.kubeconfig)}

    def command(self, argv: Sequence[str], cwd: Path | None = None) -> list[str]:
        """The command line that runs `argv` in the cluster's network; for `subprocess.Popen` with `environment()`."""
        return self.namespaces.outside(list(argv), cwd or Path.cwd())

    def run(self, argv: Sequence[str], **options: Any) -> subprocess.CompletedProcess[Any]:
        """`subprocess.run` of a host program inside the cluster's network; `env` adds to `environment()`."""
        environment = {**self.environment(), **(options.pop("env", None) or {})}
        return subprocess.run(self._wrapped(argv, options), env=environment, **options)  # noqa: PLW1510

    def popen(self, argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """`subprocess.Popen` of a host program inside the cluster's network; its PID is the program's own."""
        environment = {**self.environment(), **(options.pop("env", None) or {})}
        guest = subprocess.Popen(self._wrapped(argv, options), env=environment, **options)
        # Until nsenter has entered the network nothing but this handle tells that the program belongs to the cluster.
        self._guests = [*(other for other in self._guests if other.poll() is None), guest]
        return guest

    def kubectl(self, *arguments: str, input: str | None = None) -> str:
        """What kubectl prints.

        Raises:
            CommandError: it ended with an error; the message holds what it said.
        """
        return self._client("kubectl", arguments, input)

    def helm(self, *arguments: str) -> str:
        """What helm prints; errors as in `kubectl`."""
        return self._client("helm", arguments, None)

    def apply(self, *objects: dict[str, Any]) -> None:
        """Applies objects by server-side apply."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        self.kubectl("apply", "--server-side", "-f", "-", input=text)

    def start_server(self, plan: ServerPlan) -> Server:
        """Starts one more server inside the cluster and waits until it is ready."""
        server = self.servers.start(plan.name, plan.argv)
        self._await(server, plan)
        return server

    def forward(self, name: str, host: str, port: int) -> int:
        """Opens a way from the host's loopback to a host and port in the cluster; returns the port on the host."""
        with listening_socket() as listener:
            self._hand_down(listener, name, f"{host}:{port}")
            return int(listener.getsockname()[1])

    def wait_until(self, what: str, true: Callable[[], bool], timeout_s: float = READY_TIMEOUT_S) -> None:
        """Waits for `true()`, as long as all servers run.

        Raises:
            ServerError: a server ended, or the time is over; the message says `what` was waited for.
        """
        self.servers.wait(what, true, timeout_s)

    def kubectl_succeeds(self, *arguments: str) -> bool:
        """Whether kubectl ends without an error."""
        return self.run([self.tools["kubectl"], *arguments], capture_output=True).returncode == 0

    def _client(self, program: str, arguments: Sequence[str], text: str | None) -> str:
        answer = self.run([self.tools[program], *arguments], input=text, capture_output=True, text=True)
        if answer.returncode != 0:
            said = f"{answer.stdout}{answer.stderr}".strip()
            raise CommandError(f"{program} {' '.join(arguments)} ended with {answer.returncode}: {said}")
        return str(answer.stdout)

    def _wrapped(self, argv: Sequence[str], options: dict[str, Any]) -> list[str]:
        return self.command(argv, Path(options.pop("cwd", None) or Path.cwd()))

    def _make_namespaces(self, tools: Tools) -> None:
        resolv_conf = self.state / "resolv.conf"
        resolv_conf.write_text(
            f"nameserver {DNS_IP}\nsearch default.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n"
        )
        with (self.state / "holder.log").open("ab") as log:
            self._namespaces = Namespaces.create(resolv_conf, log, tools.path)
        RunningCluster(self._namespaces.holder_pid, self._namespaces.inner_pid, tools.path).write(self.state)
        self._servers = Servers(self._namespaces, self.state, host_environment(tools.path))

    def _start_api(self, tools: Tools) -> None:
        with listening_socket() as listener:
            port = int(listener.getsockname()[1])
            self._pki = Pki(self.state / "pki", port)
            self._pki.create()
            self._hand_down(listener, "kube-apiserver", f"{API_IP}:{port}")
        self._start_all([servers.etcd(tools, self.state), servers.api_server(tools, self._pki)])

    def _hand_down(self, listener: socket.socket, name: str, target: str) -> None:
        fd = listener.fileno()
        argv = [sys.executable, "-m", "devcluster.network.forward", f"--fd={fd}", f"--to={target}"]
        self.servers.start(f"forward-{name}", argv, pass_fds=[fd])

    def _start_controllers(self, tools: Tools) -> None:
        pki = self.pki
        self._start_all([servers.controller_manager(tools, pki), servers.scheduler(tools, pki, self.state)])
        self.apply(*servers.mpi_operator_objects(tools.mpi_manifests))
        # `kubectl wait --for=condition=Established` fails on a CRD so new that it has no conditions; and mpi-operator
        # ends at once when its kind is not served.
        self.wait_until("the API server serves MPIJobs", lambda: self.kubectl_succeeds("get", "mpijobs", "-A"))
        self._start_all([servers.mpi_operator(tools, pki)])
        self.kubectl("wait", "--for=create", "serviceaccount/default", "--namespace=default", "--timeout=60s")

    def _start_all(self, plans: Sequence[ServerPlan]) -> None:
        self._progress(f"starting {', '.join(plan.name for plan in plans)}")
        started = [(self.servers.start(plan.name, plan.argv), plan) for plan in plans]
        for server, plan in started:
            self._await(server, plan)

    def _await(self, server: Server, plan: ServerPlan) -> None:
        self.servers.wait(f"{server.name} is ready", lambda: self._healthy(plan), READY_TIMEOUT_S, server)

    def _healthy(self, plan: ServerPlan) -> bool:
        if plan.health_url is None:
            return True
        probe = ["curl", "-skf", "--max-time", "5", "-o", os.devnull, plan.health_url]
        return self.run(probe).returncode == 0

    @staticmethod
    def _started(part: T | None) -> T:
        if part is None:
            raise DevclusterError("the cluster is not running")
        return part
