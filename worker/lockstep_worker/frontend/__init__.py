"""The worker's frontend: a process of its own with HTTP on one side and the ranks on the other.

Its rooms, each of which knows only those below it:

    __main__   start and end of the process
    http       routes, guards, and the responders that write what a client gets
    flight     requests in flight: sequences out to the ranks, tokens back in, until each has ended
    schema     what the API's bodies may hold, and how it says that something is wrong
    text       token ids, text, conversations and stop strings
    settings   what rank 0 tells the process at its start

To follow one request, read `http.routes`, `schema.bodies`, `flight.prepare`, `flight.ranks`, `flight.generation`, and
`http.stream` or `http.answer`.
A *request* is a client's; it becomes one *sequence*, with a `Choice` of its own, for each prompt and each output. The
ranks know nothing of that: what the wire calls a `NewRequest` is one sequence.
"""
