"""Vectors behind a URL: an HTTP server that batches what many clients ask, and the explorer page.

Enters: requests.  Leaves: vectors, probabilities and what tasks say, the same as the library gives, whoever else asks
at the same time.  The parts, in the order that a request goes through them:

    connection   bytes -> requests, with limits of time
    guard        key, body, limits; log, metrics; cancels what nobody waits for
    app          the endpoints
    wire         what requests and answers look like
    batching     pieces of many requests -> batches, in fair turns
    engine       batches -> the model
    server       processes, signals, the end
"""
