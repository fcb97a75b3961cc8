"""Outputs: files in the output directories of tasks.

They are scanned, sent to the job's store, and fetched from there.
"""
