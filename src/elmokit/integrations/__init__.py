"""elmokit inside other libraries: one module per host, each host installed by an extra of its own."""
