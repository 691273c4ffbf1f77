"""A thin client of the API server.

Reading order: `objects` (what an object is here), `clock` (its times), `client` (calls, a watch), `mirror` (a copy).
"""
