"""What people are told. Pure; it decides nothing about the cluster.

Reading order: `status` (the whole), `groups` (one entry a group), `roles` (each role's counts), `readiness` (each
role's answers, then joined), `trouble` (what a person has to look at), `conditions` (all of these as conditions, and
the phase), `events` (what changed).
"""
