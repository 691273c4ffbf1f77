"""The HTTP side: what a client may ask for and what it gets. No other room knows of HTTP.

Read `service` (the parts that routes share), `routes` (the OpenAI API) and `probes` (for those who run the server),
`respond` (what both ways to answer share), `answer` (in one piece) and `stream` (as it comes), `logprobs`, then what
goes around it all: `app` (wiring and errors), `guard`, `meter`, `document`, `server`.
"""
