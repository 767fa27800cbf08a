"""The log of roots: publishing, naming and opening generations."""
