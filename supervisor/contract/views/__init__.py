"""The documents of the API."""
