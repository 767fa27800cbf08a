"""What turns packets into frames: one contract (:mod:`.contract`), the CPU, and NVDEC."""
