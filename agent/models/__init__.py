"""Models: exports of this node's tasks are taken, tried, and published."""
