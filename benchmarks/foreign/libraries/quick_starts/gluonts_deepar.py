"""GluonTS: DeepAR on made series by Lightning, and a forecast."""
import lightning.pytorch as pl
import numpy as np
from gluonts.dataset.common import ListDataset
from gluonts.torch import DeepAREstimator

pl.seed_everything(0, verbose=False)
rng = np.random.default_rng(0); data = ListDataset([{"start": "2024-01-01", "target": np.sin(np.arange(120) / 5 + k) + 0.1 * rng.standard_normal(120)} for k in range(8)], freq="D")
net = DeepAREstimator(freq="D", prediction_length=7, context_length=14, hidden_size=16, num_layers=1, batch_size=8, num_batches_per_epoch=15, trainer_kwargs={"max_epochs": 5, "accelerator": "cpu", "enable_progress_bar": False, "logger": False}).train(data)
print([f.mean.tolist() for f in net.predict(data)][:2])
