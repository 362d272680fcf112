"""What programs remember: copies of weights, buffers of samples, caches, closures, iterators."""

from benchmarks.generated.part import Part

PARTS = (
    Part(
        name="average of the weights in a copied model",
        setup="$average = copy.deepcopy($model)",
        after="""
            with torch.no_grad():
                for a, p in zip($average.parameters(), $model.parameters()): a.lerp_(p, 0.1)
        """,
        evaluation="print('average', F.cross_entropy($average(XV), YV).item())",
    ),
    Part(
        name="averaged model of torch",
        setup="$swa = torch.optim.swa_utils.AveragedModel($model)",
        after="""
            if $step % 2 == 0: $swa.update_parameters($model)
        """,
    ),
    Part(
        name="average of the weights in a dictionary",
        setup="$shadow = {n: p.detach().clone() for n, p in $model.named_parameters()}",
        after="""
            for n, p in $model.named_parameters(): $shadow[n].mul_(0.9).add_(p.detach(), alpha=0.1)
        """,
    ),
    Part(
        name="slow weights",
        setup="$slow = [p.detach().clone() for p in $model.parameters()]",
        after="""
            if $step % 5 == 0:
                for held, p in zip($slow, $model.parameters()):
                    held.add_(0.5 * (p.detach() - held)); p.data.copy_(held)
        """,
    ),
    Part(
        name="replay buffer in a deque",
        setup="$replay = collections.deque(maxlen=24)",
        batch="""
            $replay.extend(zip(x, y))
            if len($replay) > 10:
                old = random.sample(list($replay), 2)
                x = torch.cat([x, torch.stack([a for a, _ in old])])
                y = torch.cat([y, torch.stack([b for _, b in old])])
        """,
    ),
    Part(
        name="ring buffer in NumPy",
        top="""
            class Ring:
                def __init__(self, size):
                    self.data = np.zeros((size, 4), np.float32); self.place = 0; self.full = False
                def add(self, rows):
                    for row in rows:
                        self.data[self.place] = row
                        self.place = (self.place + 1) % len(self.data)
                        self.full = self.full or self.place == 0
                def sample(self, n):
                    top = len(self.data) if self.full else self.place
                    return self.data[np.random.randint(0, top, n)]
        """,
        setup="$ring = Ring(40)",
        after="""
            $ring.add(out.detach().numpy())
            $drawn = float($ring.sample(3).sum())
        """,
        epoch="print('drawn', $drawn if $step else 0)",
    ),
    Part(
        name="list of old outputs used in the loss",
        setup="$outputs = []",
        loss="""
            if $outputs: loss = loss + 0.01 * (out.mean(0) - random.choice($outputs)).pow(2).sum()
        """,
        after="""
            $outputs.append(out.detach().mean(0))
            if len($outputs) > 8: $outputs.pop(0)
        """,
    ),
    Part(
        name="prioritised samples",
        setup="$priority = torch.ones(len(X))",
        batch="""
            chosen = torch.multinomial($priority, 4)
            x, y = torch.cat([x, X[chosen]]), torch.cat([y, Y[chosen]])
        """,
        after="""
            with torch.no_grad():
                $priority[chosen] = F.cross_entropy(out[-4:], y[-4:], reduction="none") + 0.1
        """,
    ),
    Part(
        name="cached function of the step",
        top="""
            @functools.lru_cache(maxsize=8)
            def weight_of(step):
                return 1.0 / (1 + step % 5)
        """,
        loss="loss = loss * weight_of($step // 3)",
    ),
    Part(
        name="cache by the loss",
        top="""
            cache = {}
            def cached(key):
                if key not in cache: cache[key] = len(cache) + np.random.rand()
                return cache[key]
        """,
        after="$cached_value = cached(round(loss.item(), 1))",
        epoch="print(len(cache))",
    ),
    Part(
        name="default argument that is kept",
        top="""
            def remember(value, seen=[]):
                seen.append(value)
                return len(seen)
            def called():
                called.times += 1
                return called.times
            called.times = 0
        """,
        after="$remembered = remember(loss.item()) + called()",
    ),
    Part(
        name="closure with its own state",
        top="""
            def make_smoother(beta):
                value, corrections = 0.0, 0
                def smooth(new):
                    nonlocal value, corrections
                    value = beta * value + (1 - beta) * new; corrections += 1
                    return value / (1 - beta ** corrections)
                return smooth
        """,
        setup="$smooth = make_smoother(0.8)",
        after="$smoothed = $smooth(loss.item())",
        epoch="print('smoothed', $smoothed if $step else 0)",
    ),
    Part(
        name="generator that keeps a state",
        top="""
            def coefficients(start):
                value = start
                while True:
                    sent = yield value
                    value = value * 0.98 + (0.0 if sent is None else 0.001 * sent)
        """,
        setup="$coefficient_of = coefficients(1.0); next($coefficient_of)",
        loss="loss = loss * $coefficient_of.send(loss.item())",
    ),
    Part(
        name="iterators of the standard library",
        setup="""
            $cycle_of = itertools.cycle([1.0, 0.5, 0.8]); $count_of = itertools.count(10, 3)
            $rest_of = iter(list(range(400))); $chain = itertools.chain(range(9), "ab" * 200)
            $pairs = zip(range(400), reversed(range(400))); $every = enumerate(range(500, 900))
        """,
        loss="loss = loss * next($cycle_of)",
        after="$numbers = (next($count_of), next($rest_of), next($chain), next($pairs), next($every))",
        epoch="print($numbers if $step else 0)",
    ),
    Part(
        name="iterators through functions",
        setup="""
            $mapped = map(lambda n: n * n, itertools.count())
            $kept_by = filter(lambda n: n % 3, itertools.count())
            $sliced = itertools.islice(itertools.accumulate(itertools.count()), 0, 900, 2)
        """,
        after="$last_of = [next($mapped), next($kept_by), next($sliced)]",
    ),
    Part(
        name="target network",
        setup="$target = copy.deepcopy($model).eval(); $copies = 0",
        loss="""
            with torch.no_grad(): aim = $target(x).softmax(1)
            loss = loss + 0.1 * F.mse_loss(out.softmax(1), aim)
        """,
        after="""
            if $step % 7 == 0:
                $target.load_state_dict($model.state_dict()); $copies += 1
        """,
    ),
    Part(
        name="snapshots by step",
        setup="$snapshots = collections.OrderedDict()",
        after="""
            if $step % 6 == 0:
                $snapshots[$step] = [p.detach().clone() for p in $model.parameters()]
                if len($snapshots) > 2: $snapshots.popitem(last=False)
        """,
    ),
    Part(
        name="data changed in place",
        batch="""
            X[$step % len(X)] += 0.01 * torch.randn(8)
        """,
    ),
    Part(
        name="second optimizer for a head",
        setup="""
            $head = nn.Linear(4, 2); $head_optimizer = torch.optim.SGD($head.parameters(), lr=0.05)
        """,
        after="""
            $head_optimizer.zero_grad()
            F.cross_entropy($head(out.detach()), y % 2).backward()
            $head_optimizer.step()
        """,
        alone="second",
    ),
    Part(
        name="adversary trained in turn",
        setup="""
            $critic = nn.Linear(4, 1); $critic_optimizer = torch.optim.Adam($critic.parameters(), lr=1e-2)
        """,
        loss="""
            if $step % 2:
                $critic_optimizer.zero_grad()
                F.softplus($critic(out.detach())).mean().backward()
                $critic_optimizer.step()
            loss = loss - 0.01 * $critic(out).mean()
        """,
        alone="second",
    ),
    Part(
        name="dataclass of figures",
        top="""
            @dataclasses.dataclass
            class Figures:
                steps: int = 0
                best: float = math.inf
                names: list = dataclasses.field(default_factory=list)
        """,
        setup="$figures = Figures()",
        after="""
            $figures.steps += 1
            if loss.item() < $figures.best:
                $figures = dataclasses.replace($figures, best=loss.item())
                $figures.names.append(f"step {$step}")
        """,
    ),
)
