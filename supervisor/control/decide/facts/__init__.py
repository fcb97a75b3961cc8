"""Facts that the snapshot implies. Many modules read them; they write nothing."""
