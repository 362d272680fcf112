"""Quick starts of libraries on made data, healthy and killed twice."""
