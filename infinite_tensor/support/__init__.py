"""What has nothing to do with tensors."""
