"""A thin client of the API server: `objects` (what an object is here), `client` (calls, a watch), `mirror` (a copy)."""
