"""W&B offline: a run with watch, logged histograms, a summary, an artifact, its link `latest-run`."""
import os

os.environ.update(WANDB_MODE="offline", WANDB_SILENT="true")
import torch
import wandb

torch.manual_seed(0)
run = wandb.init(project="net", config={"lr": 1e-2, "epochs": 6})
net = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)); opt = torch.optim.Adam(net.parameters(), run.config.lr)
x = torch.randn(400, 10); y = x[:, :3].sum(1, keepdim=True)
for epoch in range(run.config.epochs):
    for k in torch.randperm(400).split(25):
        loss = (net(x[k]) - y[k]).pow(2).mean(); opt.zero_grad(); loss.backward(); opt.step(); run.log({"loss": loss.item()})
    run.log({"epoch": epoch, "weights": wandb.Histogram(net[0].weight.detach().numpy())}); print(epoch, loss.item(), flush=True)
torch.save(net.state_dict(), "net.pt"); run.summary["loss"] = loss.item(); run.finish()
