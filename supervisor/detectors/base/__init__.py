"""What a detector is, and the patterns that several share."""

from __future__ import annotations

from supervisor.detectors.base.detector import Detector

__all__ = ["Detector"]
