"""How a group comes to life and ends: what runs in the launcher pod before the ranks do, and in the other pods.

`supervisor` is `lockstep-worker serve`; `command` builds the ranks' command line, `hosts` waits for the other
pods, `process` carries signals to the ranks and their exit code back; `sshd` is what a worker pod runs.
"""
