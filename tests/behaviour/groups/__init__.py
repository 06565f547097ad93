"""Groups of tensors."""
