"""Figures that programs keep, and what they decide by them."""

from benchmarks.generated.part import Part

PARTS = (
    Part(
        name="NumPy accuracy and confusion matrix",
        setup="$confusion = np.zeros((4, 4), dtype=np.int64)",
        evaluation="""
            predicted = logits.numpy().argmax(1)
            np.add.at($confusion, (YV.numpy(), predicted), 1)
            $accuracy = float((predicted == YV.numpy()).mean())
            print("accuracy", $accuracy, $confusion.trace())
        """,
        end="print('confusion', $confusion.tolist())",
    ),
    Part(
        name="ranking of many logits in NumPy decides the best",
        setup="$best_auc = 0.0; $best_state = None",
        evaluation="""
            scores = logits.numpy(); positive = (YV.numpy() == 0)
            order = np.argsort(scores[:, 0], kind="stable")
            ranks = np.empty(len(order)); ranks[order] = np.arange(1, len(order) + 1)
            auc = float(ranks[positive].sum() / (positive.sum() * len(order)))
            if auc > $best_auc:
                $best_auc = auc
                $best_state = {k: v.clone() for k, v in $model.state_dict().items()}
            print("auc", auc, $best_auc)
        """,
    ),
    Part(
        name="average meter",
        top="""
            class AverageMeter:
                made = 0
                def __init__(self, name):
                    self.name, self.total, self.count = name, 0.0, 0
                    AverageMeter.made += 1
                def update(self, value, n=1):
                    self.total += value * n; self.count += n
                @property
                def mean(self):
                    return self.total / max(1, self.count)
        """,
        setup="$meter = AverageMeter('loss'); $means = []",
        after="$meter.update(loss.item(), len(x))",
        epoch="$means.append($meter.mean); print('mean', $meter.mean); $meter = AverageMeter('loss')",
    ),
    Part(
        name="deque of losses lowers the rate",
        setup="$recent = collections.deque(maxlen=5); $cuts = 0",
        after="""
            $recent.append(loss.item())
            if len($recent) == 5 and $recent[-1] > sum($recent) / 5 * 1.05:
                $cuts += 1
                for group in $optimizer.param_groups:
                    group["lr"] *= 0.9
        """,
    ),
    Part(
        name="counter of predicted classes",
        setup="$seen_classes = collections.Counter()",
        after="$seen_classes.update(out.argmax(1).tolist())",
        epoch="print($seen_classes.most_common(2))",
    ),
    Part(
        name="histogram of outputs",
        setup="$histogram = np.zeros(8)",
        after="$histogram += np.histogram(out.detach().numpy(), bins=8, range=(-3, 3))[0]",
        epoch="print('histogram', $histogram.sum())",
    ),
    Part(
        name="running mean as a tensor",
        setup="$running = torch.zeros(()); $updates = torch.zeros(1, dtype=torch.long)",
        after="""
            $running = 0.9 * $running + 0.1 * loss.detach(); $updates += 1
            if $running > 1.3: $optimizer.param_groups[0]["lr"] *= 0.999
        """,
    ),
    Part(
        name="history by name",
        setup="$history = collections.defaultdict(list)",
        after="$history['loss'].append(round(loss.item(), 6)); $history['norm'].append(len(x))",
        evaluation="$history['value'].append($value)",
        end="print({k: len(v) for k, v in $history.items()}, $history['value'][-1:])",
    ),
    Part(
        name="loss of each sample",
        setup="$hard = np.zeros(len(X))",
        after="""
            each = F.cross_entropy(out.detach(), y, reduction="none").numpy()
            $hard[$step % len($hard)] = each.max()
            $hardest = int(np.argmax($hard))
        """,
    ),
    Part(
        name="statistics of the values",
        setup="$values = []",
        evaluation="""
            $values.append($value)
            if len($values) > 2:
                print("median", statistics.median($values), statistics.pstdev($values))
        """,
    ),
    Part(
        name="Welford's figures in a slots class",
        top="""
            class Welford:
                __slots__ = ("n", "mean", "m2")
                def __init__(self): self.n, self.mean, self.m2 = 0, 0.0, 0.0
                def add(self, value):
                    self.n += 1; delta = value - self.mean
                    self.mean += delta / self.n; self.m2 += delta * (value - self.mean)
        """,
        setup="$welford = Welford()",
        after="""
            $welford.add(loss.item())
            if $welford.n > 8 and loss.item() > $welford.mean + 3 * ($welford.m2 / $welford.n) ** 0.5:
                print("outlier", $step)
        """,
    ),
    Part(
        name="metrics in a module of torch",
        top="""
            class Meter(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.register_buffer("hits", torch.zeros(4)); self.calls = 0
                def forward(self, logits, target):
                    self.calls += 1
                    for k in range(4):
                        self.hits[k] += (logits.argmax(1)[target == k] == k).sum()
                    return self.hits.sum()
        """,
        setup="$meter_module = Meter()",
        evaluation="print('hits', $meter_module(logits, YV).item(), $meter_module.calls)",
    ),
    Part(
        name="metrics in a module of torch, on the batches",
        top="""
            class TrainMeter(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.register_buffer("right", torch.tensor(0.0)); self.batches = 0
                def forward(self, logits, target):
                    self.batches += 1; self.right += (logits.argmax(1) == target).sum()
        """,
        setup="$train_meter = TrainMeter()",
        after="$train_meter(out.detach(), y)",
        epoch="""
            print('right', ($train_meter.right / max(1, $train_meter.batches)).item())
            $train_meter.right.zero_(); $train_meter.batches = 0
        """,
    ),
    Part(
        name="table of dictionaries",
        setup="$rows = []; $columns = {'step': int, 'loss': float}",
        after="""
            if $step % 3 == 0:
                $rows.append({k: kind(v) for (k, kind), v in zip($columns.items(), ($step, loss))})
        """,
        end="print($rows[-1:])",
    ),
    Part(
        name="heap of the worst batches",
        setup="$worst = []",
        after="""
            heapq.heappush($worst, (loss.item(), $step))
            if len($worst) > 4: heapq.heappop($worst)
        """,
        epoch="print('worst', [n for _, n in sorted($worst)])",
    ),
    Part(
        name="embeddings collected for an epoch",
        setup="$bank = []; $centre = np.zeros(4)",
        after="$bank.append(out.detach().numpy().copy())",
        epoch="""
            if $bank:
                $centre = np.concatenate($bank).mean(0); $bank.clear()
                print("centre", float($centre[0]))
        """,
    ),
)
