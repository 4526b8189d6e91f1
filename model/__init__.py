"""The model: what a correct encoder cache does."""
