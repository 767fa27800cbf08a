"""From a generation or a raw source to batches of tensors: plan, fetch, decode, batch."""
