"""How a group comes to life and ends: what runs in the launcher pod before the ranks do, and in the other pods.

Read `supervise` first: `lockstep-worker serve` from its start to its exit code. It asks `command` how the ranks are
launched, `hosts` whether the other pods can be reached, runs mpirun as `process` (signals in, output and exit code
out), and leaves its last words through `termination`. `sshd` is what every other pod runs and stands alone.
"""
