"""The dstream command: one file a verb."""
