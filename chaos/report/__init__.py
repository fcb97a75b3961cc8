"""The results of chaos runs, as one HTML page that needs no other file."""
