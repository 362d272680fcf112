"""skorch: a classifier with early stopping, a checkpoint, a schedule, its history written."""
import numpy as np
import torch
from skorch import NeuralNetClassifier
from skorch.callbacks import Checkpoint, EarlyStopping, EpochScoring, LRScheduler

torch.manual_seed(0); np.random.seed(0)
x = np.random.randn(400, 10).astype("float32"); y = (x[:, :3].sum(1) > 0).astype("int64")
net = NeuralNetClassifier(torch.nn.Sequential(torch.nn.Linear(10, 16), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(16, 2), torch.nn.Softmax(-1)), max_epochs=12, lr=0.1, batch_size=32, optimizer=torch.optim.SGD, optimizer__momentum=0.9, iterator_train__shuffle=True, verbose=0, callbacks=[EpochScoring("accuracy", lower_is_better=False, name="acc"), EarlyStopping(patience=6), Checkpoint(dirname="checkpoints"), LRScheduler("StepLR", step_size=4)])
net.fit(x, y)
print([row["valid_loss"] for row in net.history], net.score(x, y))
net.save_params(f_params="net.pt", f_optimizer="opt.pt")
