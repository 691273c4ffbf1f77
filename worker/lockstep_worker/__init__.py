"""The data plane: one group's ranks, stepping together, and the OpenAI API in front of them.

Reading order: `contract` (what the outside may rely on), `request` (what travels), `executor.loop` (one step),
`sampling` and `model` (what a step computes), `frontend` (how people reach it).
"""
