"""The conformance suite: cases, subjects, bounds, one module a chapter of checks, and the runner."""
