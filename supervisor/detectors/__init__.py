"""Detectors: one kind of trouble a file, each turning steps into a score and alerts."""

from __future__ import annotations

from supervisor.detectors.base import Detector
from supervisor.detectors.registry import build_detectors

__all__ = ["Detector", "build_detectors"]
