"""What is trained: one architecture with its real data a file."""

from __future__ import annotations

from benchmarks.corpus.tasks.base import Task
from benchmarks.corpus.tasks.cnn import CnnTask
from benchmarks.corpus.tasks.gan import GanTask
from benchmarks.corpus.tasks.lstm import LstmTask
from benchmarks.corpus.tasks.mlp import MlpTask
from benchmarks.corpus.tasks.pair import PairTask
from benchmarks.corpus.tasks.policy import PolicyTask
from benchmarks.corpus.tasks.reward import RewardTask
from benchmarks.corpus.tasks.transformer import TransformerTask
from benchmarks.corpus.tasks.vae import VaeTask

TASKS: dict[str, type[Task]] = {
    "mlp": MlpTask,
    "cnn": CnnTask,
    "transformer": TransformerTask,
    "lstm": LstmTask,
    "vae": VaeTask,
    "gan": GanTask,
    "pair": PairTask,
    "policy": PolicyTask,
    "reward": RewardTask,
}
