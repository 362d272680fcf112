"""The predictor on the corpus beside published rules: see `__main__`."""
