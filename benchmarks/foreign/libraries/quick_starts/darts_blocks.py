"""darts: a small N-BEATS on a made series, with validation and a forecast."""
import numpy as np
from darts import TimeSeries
from darts.models import NBEATSModel

t = np.arange(200); series = TimeSeries.from_values((np.sin(t / 7) + 0.1 * np.random.default_rng(0).standard_normal(200)).astype("float32"))
net = NBEATSModel(12, 4, num_stacks=2, num_blocks=1, num_layers=2, layer_widths=16, n_epochs=6, batch_size=16, random_state=0, pl_trainer_kwargs={"accelerator": "cpu", "enable_progress_bar": False, "logger": False})
net.fit(series[:150], val_series=series[150:], verbose=False)
print(net.predict(8).values().ravel().tolist())
