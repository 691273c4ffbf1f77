"""What can go wrong with the local cluster, as one tree.

DevclusterError
+-- ToolError      a program is missing and could not be installed or built
+-- ServerError    a server of the cluster ended or did not become ready; shows the tail of its log
+-- CommandError   kubectl, helm or another client program ended with an error
"""


class DevclusterError(Exception):
    """The local cluster cannot do what was asked."""


class ToolError(DevclusterError):
    """A program that the cluster needs is missing and could not be installed or built."""


class ServerError(DevclusterError):
    """A server of the cluster ended or did not become ready in time."""


class CommandError(DevclusterError):
    """A client program (kubectl, helm, curl) ended with an error; the message holds what it printed."""
