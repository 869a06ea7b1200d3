"""Let a model try."""
