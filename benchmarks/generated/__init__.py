"""Small random training programs, killed at random places: the proof that `exact` is true.

`program.py` puts a program together from a `Recipe` (where its variables live, how its loop is
written, what else it does); `trial.py` runs one and compares. Started with
``python -m benchmarks.generated``; `tests/scenarios/test_generated_programs.py` runs some of them.
"""
