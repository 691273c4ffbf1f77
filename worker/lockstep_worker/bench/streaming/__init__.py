"""`bench stream`: how many tokens a second the frontend streams: the real process and real sockets, without ranks.

Read `measure` first. Three processes: the frontend, the engine of `engine`, which publishes one token a stream and
step, and this one, which reads all streams with `client`.
"""
