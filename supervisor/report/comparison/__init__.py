"""Two runs beside each other (`supervisor report RUN --against RUN`)."""
