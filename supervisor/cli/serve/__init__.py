"""The live page of `supervisor watch --serve`."""
