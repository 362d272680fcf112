"""Each step judged, and the scene of what is anomalous."""
