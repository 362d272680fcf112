"""What the script's Python holds: variables, frames, values on the stack."""
