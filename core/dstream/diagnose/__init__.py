"""Says why a loader is slow, ours or anyone's."""
