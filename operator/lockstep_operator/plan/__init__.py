"""Every decision: from what is there to what has to be done next. Pure; no client, no clock.

Reading order: `plan` (the whole on one screen), `actions` (what may be asked for), `children` (standing children),
`groups` (fill, repair and empty places), `rollout` (a change within its budget), `retire` (how one group ends).
"""
