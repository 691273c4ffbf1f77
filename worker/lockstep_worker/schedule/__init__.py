"""Planning on the host, without torch: who runs in the next step, and what a run's tokens do to the table.

Read `sequence` (one request), `slots` (the slot table), `scheduler` (the next plan) and `grants` (its blocks), then
`update` and `finish` (what comes of a run). Every rank of a data replica does the same here from equal state, so that
ranks need not talk about it.
Room for what comes: a drafter, which proposes tokens with `SlotTable.propose`.
"""
