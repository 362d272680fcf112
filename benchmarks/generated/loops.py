"""How batches come: loops over loaders, generators, rows.

In a loop ``STEP`` stands for what is done with `x` and `y`, ``EPOCH`` for what ends an epoch.
"""

EPOCHS = 4
"""Of six batches each: 24 steps are enough for anything to happen before and after a kill."""

LOOPS = {
    "shuffling loader": """
        $loader = DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True)
        for $epoch in range(4):
            for x, y in $loader:
                STEP
                if $stop: break
            EPOCH
            if $stop: break
    """,
    "enumerated slice of a loader": """
        $loader = DataLoader(TensorDataset(X, Y), batch_size=4, shuffle=True)
        for $epoch in range(4):
            for $batch, (x, y) in enumerate(itertools.islice($loader, 6)):
                STEP
                if $stop: break
            EPOCH
            if $stop: break
    """,
    "next on an iterator": """
        $loader = DataLoader(TensorDataset(X, Y), batch_size=10, shuffle=True, drop_last=True)
        $batches = iter($loader)
        for $epoch in range(4):
            for $batch in range(6):
                try:
                    x, y = next($batches)
                except StopIteration:
                    $batches = iter($loader)
                    x, y = next($batches)
                STEP
                if $stop: break
            EPOCH
            if $stop: break
    """,
    "endless generator": """
        def forever(loader):
            rounds = 0
            while True:
                rounds += 1
                for batch in loader:
                    yield batch
        $endless = forever(DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True))
        $tried, $epoch = 0, 0
        while $epoch < 4 and not $stop:
            $tried += 1
            if $tried % 7 == 0:
                EPOCH
                $epoch += 1
                continue
            x, y = next($endless)
            STEP
    """,
    "cycle over a loader": """
        $tried, $epoch = 0, 0
        for x, y in itertools.cycle(DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True)):
            $tried += 1
            if $tried % 6 == 0:
                EPOCH
                $epoch += 1
                if $stop or $epoch >= 4: break
            STEP
    """,
    "two loaders": """
        $loader = DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True)
        $second = DataLoader(TensorDataset(XV), batch_size=5, shuffle=True)
        for $epoch in range(4):
            for (x, y), (u,) in zip($loader, itertools.cycle($second)):
                x = x + 0.1 * u.mean(0)
                STEP
                if $stop: break
            EPOCH
            if $stop: break
    """,
    "loaders in turn": """
        $loaders = [DataLoader(TensorDataset(X[k::2], Y[k::2]), 4, shuffle=True) for k in range(2)]
        $iterators = [iter(loader) for loader in $loaders]
        for $epoch in range(4):
            for $batch in range(6):
                which = random.randrange(2)
                batch = next($iterators[which], None)
                if batch is None:
                    $iterators[which] = iter($loaders[which])
                    batch = next($iterators[which])
                x, y = batch
                STEP
                if $stop: break
            EPOCH
            if $stop: break
    """,
    "random rows": """
        for $epoch in range(4):
            for _ in range(6):
                i = torch.randint(0, len(X), (8,)); x, y = X[i], Y[i]
                STEP
                if $stop: break
            EPOCH
            if $stop: break
    """,
    "permutation of NumPy": """
        $permuting = np.random.default_rng(2)
        for $epoch in range(4):
            for chosen in $permuting.permutation(len(X)).reshape(-1, 8):
                x, y = X[chosen], Y[chosen]
                STEP
                if $stop: break
            EPOCH
            if $stop: break
    """,
    "own generator of batches": """
        def batches_of(size, counts):
            order = list(range(len(X))); random.shuffle(order)
            for n in range(0, len(X), size):
                counts[n] = counts.get(n, 0) + 1
                yield X[order[n : n + size]], Y[order[n : n + size]]
        $counts = {}
        for $epoch in range(4):
            for x, y in batches_of(8, $counts):
                STEP
                if $stop: break
            EPOCH
            if $stop: break
    """,
    "iterable data set": """
        class Stream(IterableDataset):
            passes = 0
            def __iter__(self):
                self.passes += 1
                order = np.random.permutation(len(X))
                for i in order: yield X[i] * random.uniform(0.9, 1.1), Y[i]
        $stream = Stream(); $loader = DataLoader($stream, batch_size=8)
        for $epoch in range(4):
            for x, y in $loader:
                STEP
                if $stop: break
            EPOCH
            if $stop: break
    """,
    "data set that augments and counts": """
        class Augmented(Dataset):
            def __init__(self): self.calls, self.seen = 0, collections.Counter()
            def __len__(self): return len(X)
            def __getitem__(self, i):
                self.calls += 1; self.seen[i] += 1
                return X[i] + 0.1 * torch.randn(8) + random.random() * 0.1, Y[i]
        $data = Augmented(); $loader = DataLoader($data, batch_size=8, shuffle=True)
        for $epoch in range(4):
            for x, y in $loader:
                STEP
                if $stop: break
            EPOCH
            print("calls", $data.calls)
            if $stop: break
    """,
    "weighted sampler": """
        $sampler = torch.utils.data.WeightedRandomSampler(
            torch.arange(1.0, len(X) + 1), 48, generator=torch.Generator().manual_seed(3))
        $loader = DataLoader(TensorDataset(X, Y), batch_size=8, sampler=$sampler)
        for $epoch in range(4):
            for x, y in $loader:
                STEP
                if $stop: break
            EPOCH
            if $stop: break
    """,
    "batch fetched ahead": """
        def fetch():
            i = torch.randint(0, len(X), (8,))
            return X[i], Y[i]
        $next_batch = fetch()
        for $epoch in range(4):
            for _ in range(6):
                x, y = $next_batch
                $next_batch = fetch()
                STEP
                if $stop: break
            EPOCH
            if $stop: break
    """,
    "two phases": """
        $epoch = 0
        for $phase, rate in (("warm", 0.5), ("main", 1.0)):
            $loader = DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=$phase == "main")
            for _ in range(2):
                for x, y in $loader:
                    x = x * rate
                    STEP
                    if $stop: break
                EPOCH
                $epoch += 1
                if $stop: break
    """,
    "loader made anew with another size": """
        $size = 12
        for $epoch in range(4):
            for x, y in DataLoader(TensorDataset(X, Y), batch_size=$size, shuffle=True):
                STEP
                if $stop: break
            EPOCH
            $size = max(4, $size - 2)
            if $stop: break
    """,
    "list of batches": """
        $batch_list = [(X[n : n + 8], Y[n : n + 8]) for n in range(0, len(X), 8)]
        for $epoch in range(4):
            random.shuffle($batch_list)
            for x, y in list($batch_list):
                STEP
                if $stop: break
            EPOCH
            if $stop: break
    """,
    "folds": """
        $epoch = 0
        for $fold in range(2):
            $model.load_state_dict(first_weights)
            kept = [i for i in range(len(X)) if i % 2 != $fold or i % 3 == 0]
            $subset = torch.utils.data.Subset(TensorDataset(X, Y), kept)
            for _ in range(2):
                for x, y in DataLoader($subset, batch_size=6, shuffle=True):
                    STEP
                    if $stop: break
                EPOCH
                $epoch += 1
            $stop = False
    """,
    "loader with a worker": """
        class Noisy(Dataset):
            def __len__(self): return len(X)
            def __getitem__(self, i): return X[i] + 0.1 * torch.randn(8), Y[i]
        $loader = DataLoader(Noisy(), batch_size=8, shuffle=True, num_workers=1)
        for $epoch in range(3):
            for x, y in $loader:
                STEP
                if $stop: break
            EPOCH
            if $stop: break
    """,
}
