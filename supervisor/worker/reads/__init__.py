"""Values that the script reads out of tensors."""
