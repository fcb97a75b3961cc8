"""TLS certificates: read, reloaded, watched for their end."""
