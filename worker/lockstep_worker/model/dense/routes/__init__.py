"""How a decode step's multiplications are cut: `measured` where somebody measured, else `rules`; `choose` asks both.

Read `uses` (what they are for, and which cuts fit), then `choose`. No request is routed here.

`h200.json` is data: the winners of whole steps on one GPU. A null tile means torch's own multiplication.
"""
