"""Checkpoints as generations: published whole, fetched whole."""
