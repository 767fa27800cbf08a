"""Object stores behind one contract: S3, local directories, memory."""
