"""The pure decisions that `plan` and `status` are made of. No client, no clock.

`state` is what was observed, `actions` what may be asked for; `diagnose` says whether a group is ready or broken,
`places` which groups stay, `retire` how one ends, `conditions` and `events` what people are told.
"""
