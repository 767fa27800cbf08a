"""One module a peer. Each runs in its peer's own environment, as ``python -m``."""
