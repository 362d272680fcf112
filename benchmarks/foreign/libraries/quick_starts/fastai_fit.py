"""fastai on a torch optimizer (OptimWrapper) with fit_flat_cos, SaveModelCallback, clipping: synthetic images.
"""
import hashlib

import numpy as np
import torch
from fastai.vision.all import *

set_seed(3, reproducible=True)
rng = np.random.default_rng(0)
x = rng.random((240, 3, 16, 16)).astype("float32"); y = (x[:, 0].mean((1, 2)) > x[:, 1].mean((1, 2))).astype("int64")
tr, va = [(tensor(a), tensor(b)) for a, b in zip(x[:200], y[:200])], [(tensor(a), tensor(b)) for a, b in zip(x[200:], y[200:])]
dls = DataLoaders.from_dsets(tr, va, bs=20, device="cpu", num_workers=0)
second = Learner(dls, nn.Sequential(Flatten(), nn.Linear(768, 32), nn.ReLU(), nn.Linear(32, 2)), loss_func=CrossEntropyLossFlat(), opt_func=partial(OptimWrapper, opt=torch.optim.AdamW), metrics=accuracy)
second.fit_flat_cos(5, 1e-3, cbs=[SaveModelCallback(monitor="valid_loss"), EarlyStoppingCallback(patience=4), GradientClip(0.5)])
print("final weights", hashlib.sha256(b"".join(v.numpy().tobytes() for m in (second.model,) for v in m.state_dict().values())).hexdigest()[:16])
