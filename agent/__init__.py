"""The node agent: starts, watches, adopts and fences the tasks of one machine."""
