"""Sources of chance, hooks, and what else happens around a model."""

from benchmarks.generated.part import Part

PARTS = (
    Part(
        name="noise of NumPy on the inputs",
        batch="x = x + torch.from_numpy(np.random.normal(0, 0.05, tuple(x.shape)).astype(np.float32))",
    ),
    Part(
        name="noise of torch on the inputs",
        batch="x = x + 0.05 * torch.randn_like(x)",
    ),
    Part(
        name="mixed samples",
        batch="""
            share = np.random.beta(0.4, 0.4); order = torch.randperm(len(x))
            x = share * x + (1 - share) * x[order]
        """,
    ),
    Part(
        name="own generator of NumPy",
        setup="$rng = np.random.default_rng(5); $picked = []",
        batch="""
            x = x * float($rng.uniform(0.9, 1.1)); $picked.append(int($rng.integers(0, 9)))
        """,
    ),
    Part(
        name="own generator of Python",
        setup="$own_random = random.Random(3); $deck = list(range(6))",
        after="$own_random.shuffle($deck)",
        epoch="print($deck, $own_random.gauss(0, 1))",
    ),
    Part(
        name="own generator of torch",
        setup="$own_torch = torch.Generator().manual_seed(11)",
        batch="x = x + 0.02 * torch.randn(x.shape, generator=$own_torch)",
    ),
    Part(
        name="own old generator of NumPy",
        setup="$state_of = np.random.RandomState(4)",
        after="$permuted = $state_of.permutation(5).tolist()",
    ),
    Part(
        name="generator made anew each epoch",
        epoch="print(np.random.default_rng($epoch + 1).random(), random.Random($step).random())",
    ),
    Part(
        name="features left out by chance",
        batch="""
            if random.choice([True, False]): x = x.clone(); x[:, random.randrange(8)] = 0.0
        """,
    ),
    Part(
        name="hook that keeps activations",
        top="""
            activations = {}
            def keep(name):
                def hook(module, inputs, output):
                    activations[name] = output.detach().mean().item()
                return hook
        """,
        setup="$handles = [m.register_forward_hook(keep(n)) for n, m in $model.named_children()]",
        epoch="print('activations', sorted(activations.items())[:1])",
    ),
    Part(
        name="hook that counts and keeps a list",
        top="""
            class Watch:
                def __init__(self): self.calls, self.norms = 0, []
                def __call__(self, module, inputs, output):
                    self.calls += 1; self.norms.append(float(output.detach().norm()))
        """,
        setup="$watch = Watch(); $model.register_forward_hook($watch)",
        epoch="print('calls', $watch.calls, $watch.norms[-1:])",
    ),
    Part(
        name="hook on gradients",
        setup="""
            $gradient_norms = []
            next(iter($model.parameters())).register_hook(lambda g, kept=$gradient_norms: kept.append(g.norm().item()))
        """,
        epoch="print('gradients', len($gradient_norms), $gradient_norms[-1:])",
    ),
    Part(
        name="hook on the backward of a module",
        top="""
            backward_calls = [0]
            def count_backward(module, grad_input, grad_output): backward_calls[0] += 1
        """,
        setup="$model.register_full_backward_hook(count_backward)",
        epoch="print('backwards', backward_calls)",
    ),
    Part(
        name="hook that adds noise",
        setup="$model.register_forward_hook(lambda m, i, o: o + 0.01 * torch.randn_like(o) if m.training else o)",
    ),
    Part(
        name="hook before an update",
        setup="""
            $hooked = []
            $optimizer.register_step_post_hook(lambda o, a, k, kept=$hooked: kept.append(len(kept)))
        """,
        epoch="print('hooked', len($hooked))",
        alone="hooked",
    ),
    Part(
        name="parametrised weights",
        setup="""
            for m in $model.modules():
                if isinstance(m, nn.Linear) and m.out_features == 4:
                    nn.utils.parametrizations.weight_norm(m)
            $optimizer = type($optimizer)($model.parameters(), lr=0.02)
        """,
        alone="first",
    ),
    Part(
        name="function of autograd that counts",
        top="""
            class Scaled(torch.autograd.Function):
                forwards = 0
                backwards = 0
                @staticmethod
                def forward(context, value):
                    Scaled.forwards += 1
                    return value * 1.1
                @staticmethod
                def backward(context, gradient):
                    Scaled.backwards += 1
                    return gradient * 1.1
        """,
        loss="loss = Scaled.apply(loss)",
        epoch="print('scaled', Scaled.forwards)",
    ),
    Part(
        name="activation checkpointing",
        loss="""
            from torch.utils.checkpoint import checkpoint
            loss = loss + 0.1 * checkpoint($model, x, use_reentrant=False).pow(2).mean()
        """,
        alone="second",
    ),
    Part(
        name="functional transforms",
        after="""
            if $step % 5 == 0:
                weights = {k: v.detach() for k, v in $model.named_parameters()}
                each = torch.func.functional_call($model, weights, (x,))
                $functional = float(each.sum())
        """,
    ),
    Part(
        name="evaluation on single batches",
        setup="$parts_seen = 0",
        evaluation="""
            for a, b in zip(XV.split(24), YV.split(24)):
                moment("evaluation"); $parts_seen += 1
                $piece = F.cross_entropy($model(a), b).item()
                if $piece > 1.6: break
            print("piece", $piece, $parts_seen)
        """,
    ),
    Part(
        name="evaluation in inference mode",
        after="""
            if $step % 6 == 0:
                with torch.inference_mode():
                    $inferred = $model(XV[:5]).argmax(1).numpy().tolist()
                print("inferred", $inferred)
        """,
    ),
    Part(
        name="weights used before the forward",
        setup="""
            $bare = nn.Parameter(torch.ones(8)); $optimizer.add_param_group({"params": [$bare]})
        """,
        batch="x = x * torch.tanh($bare)",
    ),
    Part(
        name="penalty computed before the forward",
        batch="penalty = 0.001 * sum(p.norm() for p in $model.parameters())",
        loss="loss = loss + penalty",
    ),
    Part(
        name="losses summed with their graphs",
        setup="$total = 0.0",
        after="$total = $total + loss",
        epoch="print('total', float($total)); $total = 0.0",
    ),
    Part(
        name="gradients that nobody clears",
        setup="$probe = nn.Linear(4, 4)",
        loss="loss = loss + 0.1 * F.cross_entropy($probe(out), y)",
        gradient="nn.utils.clip_grad_norm_([*$model.parameters(), *$probe.parameters()], 1.0)",
    ),
)
