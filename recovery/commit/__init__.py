"""How a save becomes a commit, and a commit becomes the base of a generation."""
