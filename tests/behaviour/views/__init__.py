"""What other people's tools see of tensors."""
