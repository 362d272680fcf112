"""Trainings that fall sick for one known cause, for `benchmarks.diagnosis`."""

from __future__ import annotations

from benchmarks.sick_trainings.sick_code import SICK_CODE
from benchmarks.sick_trainings.sick_data import SICK_DATA
from benchmarks.sick_trainings.sick_doses import SICK_DOSES
from benchmarks.sick_trainings.sick_learning_rate import SICK_LEARNING_RATE
from benchmarks.sick_trainings.sick_machine import SICK_MACHINE
from benchmarks.sick_trainings.sick_precision import SICK_PRECISION
from benchmarks.sick_trainings.sick_state import SICK_STATE
from benchmarks.sick_trainings.sick_training import SickTraining
from benchmarks.sick_trainings.small_network import SMALL_NETWORK

__all__ = ["SICK_TRAININGS", "SickTraining"]

SICK_TRAININGS = (
    *SMALL_NETWORK,
    *SICK_DATA,
    *SICK_PRECISION,
    *SICK_LEARNING_RATE,
    *SICK_STATE,
    *SICK_CODE,
    *SICK_MACHINE,
    *SICK_DOSES,
)
