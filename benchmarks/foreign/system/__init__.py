"""Scripts that meet the operating system, of kinds found in public reports."""
