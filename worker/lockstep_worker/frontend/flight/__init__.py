"""Requests in flight, from their fields to the end of their last sequence. Knows no HTTP.

Read `prepare` (a body becomes sequences), `ranks` (the ranks as seen from here: the table of what they work on),
`generation` (the state of one request and of its choices), `availability` (whether the ranks can serve), `link` (the
sockets), `lifecycle` (how the process ends).
"""
