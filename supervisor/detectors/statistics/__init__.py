"""Running statistics that the detectors and the predictor are made of: one statistic a file."""
