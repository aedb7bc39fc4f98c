"""A store in a bucket of S3, or of any store that speaks its protocol."""
