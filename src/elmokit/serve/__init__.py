"""An HTTP server for a model, its tasks and its index, and the explorer page.

Input: HTTP requests.  Output: vectors, probabilities and predictions, equal to those of the library, whatever other
requests share the batch.  The modules, in the order in which a request passes through them:

    connection   bytes -> HTTP requests, with timeouts
    guard        API key, body, limits, log and metrics; cancels requests whose client has disconnected
    app          the application: error handlers, middleware and the routes
    routes       the endpoints: vectors, language model, tasks, status, pages
    schemas      fields of request and response bodies
    reader       texts -> token lists within the limits; results before the deadline
    batching     sentences of many requests -> batches
    engine       batches -> the model
    wire         arrays -> JSON, .npy or safetensors
    errors       the one format of errors
    observe      metrics and log
    server       processes, signals, shutdown

`server.serve` checks that the extra `serve` is installed before it imports the modules that need it.
"""
