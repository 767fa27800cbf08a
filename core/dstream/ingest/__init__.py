"""From a source of raw files to one committed generation: scan, probe, pack, publish."""
