"""What the API's bodies may hold, and the error object. No state, no sockets; the OpenAPI document is made of it.

Read `fields` (what one value may be), `bodies` (what clients send), `unsupported` (what is known and refused by name),
`responses` (what they get), `faults` (every way in which a request fails).
"""
