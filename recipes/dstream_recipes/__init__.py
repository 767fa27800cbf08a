"""What to do with a kind of data: recipes that ship with dstream."""
