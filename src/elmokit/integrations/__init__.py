"""elmokit inside other libraries: one module for each host, and each host behind an extra of its own."""
