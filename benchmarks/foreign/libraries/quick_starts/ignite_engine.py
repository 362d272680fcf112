"""Ignite: trainer and evaluator, metrics, a warm-up schedule, checkpoints of the best, early stopping; curves in a zarr store."""
import torch
import zarr
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.handlers import EarlyStopping, ModelCheckpoint, create_lr_scheduler_with_warmup
from ignite.metrics import Accuracy, Loss
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(480, 10); y = (x[:, :3].sum(1) > 0).long(); train = DataLoader(TensorDataset(x[:400], y[:400]), 20, shuffle=True); held = DataLoader(TensorDataset(x[400:], y[400:]), 40)
net = torch.nn.Sequential(torch.nn.Linear(10, 16), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(16, 2)); opt = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9); criterion = torch.nn.CrossEntropyLoss()
trainer = create_supervised_trainer(net, opt, criterion); judge = create_supervised_evaluator(net, {"accuracy": Accuracy(), "loss": Loss(criterion)})
trainer.add_event_handler(Events.ITERATION_STARTED, create_lr_scheduler_with_warmup(torch.optim.lr_scheduler.StepLR(opt, 40, 0.5), 0.01, 10))
curve = zarr.open_group("curves.zarr", mode="a").require_array("loss", shape=(400,), chunks=(16,), dtype="f8")
@trainer.on(Events.ITERATION_COMPLETED)
def note(engine): curve[engine.state.iteration - 1] = engine.state.output
@trainer.on(Events.EPOCH_COMPLETED)
def evaluate(engine): judge.run(held); print(engine.state.epoch, judge.state.metrics, flush=True)
judge.add_event_handler(Events.COMPLETED, ModelCheckpoint("best", n_saved=2, score_function=lambda e: e.state.metrics["accuracy"], score_name="accuracy", global_step_transform=lambda *_: trainer.state.epoch), {"net": net})
judge.add_event_handler(Events.COMPLETED, EarlyStopping(4, lambda e: -e.state.metrics["loss"], trainer))
trainer.run(train, max_epochs=6); print(curve[:].sum(), opt.param_groups[0]["lr"])
