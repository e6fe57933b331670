"""One module a chapter of checks; importing one enters its checks."""
