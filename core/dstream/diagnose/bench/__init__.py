"""Which part of a loader sets the pace, and what to change: `dstream bench`."""
