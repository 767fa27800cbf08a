"""dstream beside other loaders: the same clips from the same S3 endpoint. See ``__main__``."""
