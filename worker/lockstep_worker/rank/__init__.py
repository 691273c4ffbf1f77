"""One rank of a group, from its start to its exit code: what mpirun (or, for one rank, the supervisor) starts.

Read `__main__` (signals, and how a rank fails), `rank` (its life beside the loop), `assemble` (how the loop's parts are
built around a model), `link` (where frontend and ranks meet), `frontend_child` (rank 0's second process).
"""
