"""Short real trainings on a CPU, healthy and sick, whose outcome is known: see `__main__`."""
