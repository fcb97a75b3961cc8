"""The history of a run, from sources that are independent of the product: formats, readers, recorders."""
