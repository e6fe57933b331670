"""The built-in implementations, one module each; none imports another."""

# One line an implementation. Importing this package imports none of them.
CATALOGUE: tuple[str, ...] = ()
