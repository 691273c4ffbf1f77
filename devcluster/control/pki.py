"""Keys, certificates and kubeconfigs of one cluster, made with openssl; valid for a few days."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

import yaml

from devcluster.errors import DevclusterError
from devcluster.network.addresses import API_IP, KUBERNETES_SERVICE_IP

DAYS = "7"
_SERVER_NAMES = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"]
_SERVER_ADDRESSES = ["127.0.0.1", API_IP, KUBERNETES_SERVICE_IP]

IDENTITIES = {
    "admin": "/O=system:masters/CN=admin",
    "kube-controller-manager": "/CN=system:kube-controller-manager",
    "kube-scheduler": "/CN=system:kube-scheduler",
    "kube-proxy": "/CN=system:kube-proxy",
    "prometheus": "/CN=prometheus",
    "mpi-operator": "/O=system:serviceaccounts/CN=system:serviceaccount:mpi-operator:mpi-operator",
}
"""Client certificates: file name to subject. Each server has only the rights that RBAC gives to its name."""


@dataclass(frozen=True)
class Pki:
    """The files of one cluster's identities; made by `create`."""

    folder: Path
    api_port: int

    def create(self) -> None:
        """Makes the CA, the API server's certificate, the key for service accounts and all kubeconfigs."""
        self.folder.mkdir(parents=True, mode=0o700)
        self._key("ca")
        self._openssl(
            "req", "-x509", "-new", "-key", "ca.key", "-subj", "/CN=devcluster-ca", "-days", DAYS, "-out", "ca.crt"
        )
        self._key("sa")
        names = [f"DNS:{name}" for name in _SERVER_NAMES] + [f"IP:{address}" for address in _SERVER_ADDRESSES]
        self._certificate("apiserver", "/CN=kube-apiserver", f"subjectAltName={','.join(names)}")
        for name, subject in IDENTITIES.items():
            self._certificate(name, subject, "extendedKeyUsage=clientAuth")
            self._kubeconfig(name)

    def file(self, name: str) -> str:
        """The path of one file, such as `ca.crt`."""
        return str(self.folder / name)

    def kubeconfig(self, name: str) -> Path:
        """The kubeconfig of one identity; its address works in the cluster's network and on the host's loopback."""
        return self.folder / f"{name}.kubeconfig"

    def _kubeconfig(self, name: str) -> None:
        server = f"https://127.0.0.1:{self.api_port}"
        cluster = {"server": server, "certificate-authority": self.file("ca.crt")}
        user = {"client-certificate": self.file(f"{name}.crt"), "client-key": self.file(f"{name}.key")}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "devcluster",
            "clusters": [{"name": "devcluster", "cluster": cluster}],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": "devcluster", "context": {"cluster": "devcluster", "user": name}}],
        }
        self.kubeconfig(name).write_text(yaml.safe_dump(document))

    def _key(self, name: str) -> None:
        self._openssl("ecparam", "-genkey", "-name", "prime256v1", "-noout", "-out", f"{name}.key")

    def _certificate(self, name: str, subject: str, extension: str) -> None:
        self._key(name)
        (self.folder / f"{name}.ext").write_text(extension)
        self._openssl("req", "-new", "-key", f"{name}.key", "-subj", subject, "-out", f"{name}.csr")
        sign = ["x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial"]
        self._openssl(*sign, "-days", DAYS, "-out", f"{name}.crt", "-extfile", f"{name}.ext")

    def _openssl(self, *arguments: str) -> None:
        command = ["openssl", *arguments]
        answer = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)
        if answer.returncode != 0:
            raise DevclusterError(f"openssl {arguments[0]} failed: {answer.stderr.strip()}")
