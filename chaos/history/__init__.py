"""What happened in a run, by sources that are independent of the product: formats, readers, recorders."""
