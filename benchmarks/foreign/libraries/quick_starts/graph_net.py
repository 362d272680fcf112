"""PyG: a GCN on a made graph with a train mask, then a GIN on mini-batches of graphs."""
import torch
from torch_geometric import seed_everything
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv, GINConv, global_add_pool

seed_everything(0)
graph = Data(x=torch.randn(120, 8), edge_index=torch.randint(0, 120, (2, 500))); graph.y = (graph.x[:, 0] > 0).long(); graph.train_mask = torch.rand(120) < 0.5
class GCN(torch.nn.Module):
    def __init__(self): super().__init__(); self.a, self.b = GCNConv(8, 16), GCNConv(16, 2)
    def forward(self, d): return self.b(torch.nn.functional.dropout(self.a(d.x, d.edge_index).relu(), 0.5, self.training), d.edge_index)
net = GCN(); opt = torch.optim.Adam(net.parameters(), 1e-2, weight_decay=5e-4)
for i in range(40):
    loss = torch.nn.functional.cross_entropy(net(graph)[graph.train_mask], graph.y[graph.train_mask]); opt.zero_grad(); loss.backward(); opt.step()
print(loss.item(), flush=True)
graphs = [Data(x=torch.randn(n := 5 + i % 6, 4), edge_index=torch.randint(0, n, (2, 12)), y=torch.tensor([i % 2])) for i in range(80)]
class GIN(torch.nn.Module):
    def __init__(self): super().__init__(); self.a = GINConv(torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU())); self.b = torch.nn.Linear(16, 2)
    def forward(self, d): return self.b(global_add_pool(self.a(d.x, d.edge_index), d.batch))
gin = GIN(); opt = torch.optim.Adam(gin.parameters(), 1e-2)
for epoch in range(5):
    for batch in DataLoader(graphs, 8, shuffle=True):
        loss = torch.nn.functional.cross_entropy(gin(batch), batch.y); opt.zero_grad(); loss.backward(); opt.step()
    print(epoch, loss.item(), flush=True)
torch.save({"gcn": net.state_dict(), "gin": gin.state_dict()}, "net.pt")
