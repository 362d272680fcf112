"""The steps of a run in the programs where people look at their trainings (`log` in a config)."""
