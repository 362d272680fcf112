"""MLflow (skinny): a run in a folder of files, parameters, metrics of each step, artifacts."""
import os

os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
import mlflow
import torch

torch.manual_seed(0); mlflow.set_tracking_uri("file:./mlruns"); mlflow.set_experiment("net")
net = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)); opt = torch.optim.Adam(net.parameters(), 1e-2)
x = torch.randn(400, 10); y = x[:, :3].sum(1, keepdim=True)
with mlflow.start_run(run_name="first"):
    mlflow.log_params({"lr": 1e-2, "epochs": 6})
    for epoch in range(6):
        for k in torch.randperm(400).split(25):
            loss = (net(x[k]) - y[k]).pow(2).mean(); opt.zero_grad(); loss.backward(); opt.step()
        mlflow.log_metric("loss", loss.item(), step=epoch); print(epoch, loss.item(), flush=True)
    torch.save(net.state_dict(), "net.pt"); mlflow.log_artifact("net.pt")
