"""Models: exported SavedModels, published for model servers under version numbers."""
