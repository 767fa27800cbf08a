"""dstream: from a bucket of raw video to exact clips as tensors, with every request counted."""

__version__ = "0.1.0"
