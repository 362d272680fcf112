"""What the algebra of torch's optimizers forbids."""
