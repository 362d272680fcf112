"""Finds risky training code without running it: syntax trees and a little data flow, no torch."""
