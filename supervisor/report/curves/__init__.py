"""Curves that readers can zoom and smooth, in the report and on the live page."""
