"""Scripts of the kinds that people report: input, databases, processes, threads, sockets.

Each is killed twice; what is called exact ends as plain python does.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.generated.trial import try_script
from benchmarks.generated.warm_client import WarmClient

HEAD = """
import atexit, fcntl, hashlib, json, logging, logging.handlers, multiprocessing, os, pathlib, pickle
import queue, random, socket, sqlite3, subprocess, sys, tempfile, threading
from concurrent.futures import ThreadPoolExecutor
import numpy as np, torch

torch.manual_seed(0); torch.set_num_threads(1)
net = torch.nn.Linear(4, 1); opt = torch.optim.Adam(net.parameters(), 1e-2)
mp = multiprocessing.get_context("fork")

def moment(name): sys.audit("moment", name)
def train(x):
    moment("batch"); loss = (net(x).sum(1) - x.sum(1)).pow(2).mean(); opt.zero_grad()
    loss.backward(); moment("backward"); opt.step(); moment("step"); return loss.item()
def noise(): return torch.randn(8, 4)
"""
SCRIPTS = {
    "a data set that streams standard input": """
        class Rows(torch.utils.data.IterableDataset):
            def __iter__(self):
                for line in sys.stdin: yield torch.full((4,), float(line) / 50)
        for n, x in enumerate(torch.utils.data.DataLoader(Rows(), batch_size=8)):
            train(x)
            if n == 40: break
        print(n)
    """,
    "answers by a pipe": """
        lr = float(input("rate? ")) / 100 + 0.01; steps = int(input()) + 40
        for n in range(steps): train(noise() * lr * 50)
        print(lr, steps, input())
    """,
    "a pool of processes that stays": """
        def score(k): return sum(range(k))
        if __name__ == "__main__":
            pool = mp.Pool(1); told = []
            for n in range(40):
                train(noise())
                if n % 8 == 7: told.append(pool.map(score, range(n, n + 3)))
            pool.close(); pool.join(); print(told)
    """,
    "batches made by a process": """
        def produce(q):
            g = torch.Generator().manual_seed(5)
            for n in range(40): q.put(torch.randn(8, 4, generator=g).numpy())
            q.put(None)
        q = mp.Queue(4); p = mp.Process(target=produce, args=(q,), daemon=True); p.start(); n = 0
        while (x := q.get()) is not None: train(torch.from_numpy(x)); n += 1
        p.join(); print(n)
    """,
    "batches made by a thread": """
        def produce(q):
            g = torch.Generator().manual_seed(5)
            for n in range(40): q.put(torch.randn(8, 4, generator=g))
            q.put(None)
        q = queue.Queue(4); t = threading.Thread(target=produce, args=(q,)); t.start(); n = 0
        while (x := q.get()) is not None: train(x); n += 1
        t.join(); print(n)
    """,
    "values that a manager's process holds": """
        if __name__ == "__main__":
            with mp.Manager() as manager:
                shared = manager.dict(); seen = manager.list()
                for n in range(40):
                    shared[n] = train(noise()); seen.append(n)
                print(len(shared), sum(seen), round(sum(shared.values()), 6))
    """,
    "rows read from and written to one database": """
        db = sqlite3.connect("data.db", isolation_level=None)
        db.execute("create table if not exists rows(id integer primary key, v real)")
        db.execute("create table if not exists metrics(step, loss)")
        if not db.execute("select count(*) from rows").fetchone()[0]:
            made = [(random.Random(k).random(),) for k in range(400)]
            db.executemany("insert into rows(v) values(?)", made)
        cursor = db.execute("select v from rows order by id")
        for n in range(40):
            x = torch.tensor([v for (v,) in cursor.fetchmany(8)]).view(2, 4)
            db.execute("insert into metrics values(?, ?)", (n, train(x)))
        print(db.execute("select count(*), max(step) from metrics").fetchone()); db.close()
    """,
    "a lock, and a file with the process's number": """
        lock = open("train.lock", "w"); fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        pathlib.Path("train.pid").write_text(str(os.getpid()))
        atexit.register(os.remove, "train.pid")
        for n in range(40):
            train(noise())
            assert pathlib.Path("train.pid").read_text() == str(os.getpid())
        print("held")
    """,
    "a server at a socket file": """
        if os.path.exists("s.sock"): os.remove("s.sock")
        server = socket.socket(socket.AF_UNIX); server.bind("s.sock"); server.listen()
        def serve():
            while True:
                c, _ = server.accept(); c.sendall(b"hi"); c.close()
        threading.Thread(target=serve, daemon=True).start()
        for n in range(40):
            train(noise())
            if n % 10 == 9:
                with socket.socket(socket.AF_UNIX) as c:
                    c.connect("s.sock")
                    assert c.recv(9) == b"hi"
        server.close(); os.remove("s.sock"); print("served")
    """,
    "a server at a port of its own": """
        server = socket.socket()
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        asked = []
        def serve():
            while True:
                c, _ = server.accept(); c.sendall(b"%d" % len(asked)); c.close()
        threading.Thread(target=serve, daemon=True).start()
        for n in range(40):
            train(noise()); asked.append(n)
            if n % 10 == 9:
                with socket.create_connection(("127.0.0.1", port)) as c: assert c.recv(9)
        print(len(asked))
    """,
    "batches from a command": """
        count = "i=0; while [ $i -lt 400 ]; do echo $i; i=$((i+1)); done"
        made = subprocess.Popen(["sh", "-c", count], stdout=subprocess.PIPE, text=True)
        for n in range(40):
            row = [float(made.stdout.readline()) for _ in range(8)]
            train(torch.tensor(row).view(2, 4) / 400)
        made.stdout.close(); made.wait(); print(n)
    """,
    "a cache of files by their hash": """
        os.makedirs("cache", exist_ok=True)
        def cached(k):
            path = f"cache/{hashlib.sha1(str(k).encode()).hexdigest()[:12]}.pkl"
            if not os.path.exists(path):
                with tempfile.NamedTemporaryFile(dir="cache", delete=False) as f:
                    pickle.dump(np.random.default_rng(k).normal(size=(8, 4)), f)
                os.replace(f.name, path)
            with open(path, "rb") as f: return torch.from_numpy(pickle.load(f)).float()
        for n in range(48): train(cached(n % 12))
        print(len(os.listdir("cache")))
    """,
    "a log that rotates": """
        log = logging.getLogger("t")
        log.setLevel(20)
        log.addHandler(logging.handlers.RotatingFileHandler("t.log", "a", 200, 3))
        for n in range(40): log.info("step %d %.6f", n, train(noise()))
        print(sorted(f for f in os.listdir() if f.startswith("t.log")))
    """,
    "a log written by a thread": """
        q = queue.Queue()
        h = logging.FileHandler("q.log")
        l = logging.handlers.QueueListener(q, h)
        l.start()
        log = logging.getLogger("q")
        log.setLevel(20)
        log.addHandler(logging.handlers.QueueHandler(q))
        for n in range(40): log.info("step %d", n); train(noise())
        l.stop(); print(len(open("q.log").readlines()))
    """,
    "saves by an executor": """
        pool = ThreadPoolExecutor(1)
        for n in range(40):
            train(noise())
            if n % 8 == 7:
                state = {k: v.clone() for k, v in net.state_dict().items()}
                pool.submit(torch.save, state, f"n{n}.pt")
        pool.shutdown(); print(sorted(f for f in os.listdir() if f.endswith(".pt")))
    """,
    "a search without a seed, in a database": """
        db = sqlite3.connect("study.db")
        db.execute("create table if not exists trial(id integer primary key, lr, value, state)")
        db.commit()
        for t in range(4):
            lr = 10 ** random.SystemRandom().uniform(-3, -1)
            i = db.execute("insert into trial(lr, state) values(?, 'running')", (lr,)).lastrowid
            db.commit()
            torch.manual_seed(t)
            net = torch.nn.Linear(4, 1)
            opt = torch.optim.SGD(net.parameters(), lr)
            for n in range(12): value = train(noise())
            db.execute("update trial set value=?, state='done' where id=?", (value, i)); db.commit()
        rows = db.execute("select id, state, value is not null from trial order by id").fetchall()
        print(rows)
        db.close()
        os.remove("study.db")
        net.weight.data.zero_(); net.bias.data.zero_()
    """,
    "shared memory": """
        from multiprocessing import shared_memory
        m = shared_memory.SharedMemory(create=True, size=4096); a = np.ndarray((64,), "f8", m.buf)
        a[:] = 0
        for n in range(40): a[n] = train(noise())
        print(round(float(a.sum()), 8)); del a; m.close(); m.unlink()
    """,
}
OF_THREADS = ("a log written by a thread", "saves by an executor")
"""How far they have come at a kill is a matter of chance."""
QUICK = ("batches made by a process", "a server at a socket file")


@pytest.fixture(scope="module")
def client() -> Iterator[WarmClient]:
    client = WarmClient()
    yield client
    client.close()


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in QUICK else pytest.mark.exhaustive) for n in SCRIPTS],
)
def test_a_kill_is_resumed_exactly(name: str, client: WarmClient, tmp_path: Path) -> None:
    script = HEAD + textwrap.dedent(SCRIPTS[name]) + '\ntorch.save(net.state_dict(), "net.pt")\n'

    verdict = try_script(
        script, client, tmp_path / "run", kills=(0.55, 0.8), given="pipe", healthy=False
    )

    assert verdict.kills == 2
    assert not verdict.is_false_exact, verdict
    assert verdict.kind == "exact" or name in OF_THREADS, verdict
