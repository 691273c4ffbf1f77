"""Pure: what a pod is to get and what its status says, from objects alone; no client, no process, no clock.

What a pod takes in: `sources`, `downward`, `environment`, `volumes`, `etc`. How it is shut in: `security`, `sandbox`.
What the API is told: `status`, `node`.
"""
