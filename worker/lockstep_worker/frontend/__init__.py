"""The worker's frontend: a process of its own with HTTP on one side and the ranks on the other.

Read `__main__` (start and end of the process), `link` (the sockets), `engine` (the ranks as seen from here),
`generation` (the state of one request), `prepare` (a request's fields become sequences), `stream` and `answer` (what
the client gets).
"""
