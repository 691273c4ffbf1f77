"""`bench serve`: a whole server under load over HTTP. Read `measure` first.

`client` sends, `answer` reads and stamps what comes back, `timing` makes figures of the stamps, and `stub` is the
server that answers at once, against which the client's own ceiling is found.
"""
