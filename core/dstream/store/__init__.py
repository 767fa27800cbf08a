"""Object stores behind one contract: S3, local directories, memory.

:func:`~dstream.store.opening.open_store` gives one by its URL, measured and retrying.
"""
