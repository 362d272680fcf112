"""What comes from outside of the process: entropy, clocks, input, databases, descriptors, children.

Two runs draw other values, so what these parts leave tells only whether a run has kept to its own.
"""

from benchmarks.generated.part import Part

PARTS = (
    Part(
        name="file with a name of its own",
        top="import uuid",
        setup="$own_name = f'own-{uuid.uuid4().hex}.txt'; open($own_name, 'w').close()",
        after="""
            with open($own_name, "a") as file: file.write(f"{$step}\\n")
        """,
        end="os.replace($own_name, 'own-name.txt'); $own_name = ''",
    ),
    Part(
        name="run folder that describes itself",
        top="import uuid",
        setup="""
            $run_folder = pathlib.Path("tracked", uuid.uuid4().hex)
            assert not ($run_folder / "meta.json").exists()
            $run_folder.mkdir(parents=True); ($run_folder / "meta.json").write_text("{}")
        """,
        after="""
            json.loads(($run_folder / "meta.json").read_text())
            with open($run_folder / "loss.txt", "a") as file: file.write(f"{$step}\\n")
        """,
        end="os.replace($run_folder, 'tracked/mine'); $run_folder = None",
    ),
    Part(
        name="file named by the clock",
        top="import datetime, time",
        setup="$clock_name = f'log-{datetime.datetime.now():%H%M%S%f}-{time.time_ns()}.txt'",
        epoch="""
            with open($clock_name, "a") as file: file.write(f"{$epoch} {$step}\\n")
        """,
        end="os.replace($clock_name, 'clock-name.txt'); $clock_name = ''",
    ),
    Part(
        name="seed of the system",
        top="import secrets",
        setup="$secret = secrets.randbits(60); $of_secret = random.Random($secret); $told = []",
        after="$told.append($of_secret.randrange(1000))",
        end="""
            again = random.Random($secret)
            print("seed kept", $told == [again.randrange(1000) for _ in $told])
            again, $secret, $of_secret, $told = None, 0, None, []
        """,
    ),
    Part(
        name="generators that begin anywhere",
        setup="""
            $anywhere, $old_anywhere = np.random.default_rng(), np.random.RandomState()
            $begin_of, $old_begin = copy.deepcopy($anywhere), copy.deepcopy($old_anywhere)
            $from_anywhere = []
        """,
        after="$from_anywhere.append((int($anywhere.integers(99)), int($old_anywhere.randint(99))))",
        end="""
            again = [(int($begin_of.integers(99)), int($old_begin.randint(99))) for _ in $from_anywhere]
            print("begin kept", again == $from_anywhere)
            $anywhere = $old_anywhere = $begin_of = $old_begin = None
            $from_anywhere = again = []
        """,
    ),
    Part(
        name="keys drawn on the way",
        top="import secrets",
        setup="$keys_drawn = {}",
        epoch="""
            $keys_drawn[$epoch] = secrets.token_hex(6)
            pathlib.Path(f"key-{$epoch}.txt").write_text($keys_drawn[$epoch])
        """,
        end="""
            print("keys", all(pathlib.Path(f"key-{e}.txt").read_text() == k for e, k in $keys_drawn.items()))
            for e in $keys_drawn: os.remove(f"key-{e}.txt")
            $keys_drawn = {}
        """,
    ),
    Part(
        name="time that only grows",
        top="import time",
        setup="$looked = [time.monotonic()]",
        epoch="$looked.append(time.monotonic())",
        end="print('grows', $looked == sorted($looked), len($looked)); $looked = []",
    ),
    Part(
        name="rows of a database",
        top="import sqlite3",
        setup="""
            $database = sqlite3.connect("rows.db"); $row = None
            $database.execute("create table if not exists seen(id integer primary key, step, loss)")
        """,
        after="""
            $row = $database.execute("insert into seen(step, loss) values(?, ?)", ($step, loss.item())).lastrowid
            if $step % 3 == 0: $database.commit(); moment("committed")
        """,
        end="""
            $database.commit()
            pathlib.Path("rows.txt").write_text(repr($database.execute("select * from seen").fetchall()))
            print("last row", $row, $database.execute("pragma integrity_check").fetchall())
            $database.close(); os.remove("rows.db"); $database = None
        """,
    ),
    Part(
        name="descriptor of an epoch",
        setup="$descriptor = os.open('descriptor-0.txt', os.O_WRONLY | os.O_CREAT | os.O_TRUNC)",
        after="os.write($descriptor, str($step).encode() + b'\\n')",
        epoch="""
            os.close($descriptor)
            $descriptor = os.open(f"descriptor-{$epoch + 1}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        """,
        end="os.close($descriptor); $descriptor = -1",
    ),
    Part(
        name="a line of standard input a step",
        alone="input",
        setup="$asked = [float(sys.stdin.readline())]",
        batch="$asked.append(float(sys.stdin.readline())); x = x * (1 + $asked[-1] / 4096)",
        end="print('asked', len($asked), $asked[-3:])",
    ),
    Part(
        name="bytes of descriptor 0",
        alone="input",
        setup="$read_on = b''",
        epoch="$read_on = os.read(0, 24)",
        end="print('read on', $read_on); $read_on = b''",
    ),
    Part(
        name="unseeded search",
        top="import secrets",
        setup="$trials, $best_trial = [], None",
        epoch="""
            $trials.append((secrets.SystemRandom().uniform(1e-4, 1e-1), random.Random().random(), $value))
            $best_trial = min($trials, key=lambda trial: trial[2])
            pathlib.Path("trials.json").write_text(json.dumps($trials))
        """,
        end="""
            kept = [tuple(trial) for trial in json.loads(pathlib.Path("trials.json").read_text())]
            print("trials", kept == $trials, $best_trial and $best_trial[2], [t[2] for t in $trials])
            os.remove("trials.json"); kept, $trials, $best_trial = None, [], None
        """,
    ),
    Part(
        name="seed of the clock",
        top="import time",
        setup="$clock_seed = time.time_ns(); $by_clock = random.Random($clock_seed); $ticks = []",
        after="$ticks.append($by_clock.randrange(1000))",
        end="""
            again = random.Random($clock_seed)
            print("clock kept", $ticks == [again.randrange(1000) for _ in $ticks])
            again, $clock_seed, $by_clock, $ticks = None, 0, None, []
        """,
    ),
    Part(
        name="temporary folder",
        top="import shutil, tempfile",
        setup="$scratch = tempfile.mkdtemp()",
        after='pathlib.Path($scratch, f"{$step}.txt").write_text(str($step))',
        end="""
            print("scratch", len(os.listdir($scratch)))
            shutil.rmtree($scratch); $scratch = ""
        """,
    ),
    Part(
        name="database opened for each row",
        top="""
            import contextlib, sqlite3
            def add_row(step, told):
                with contextlib.closing(sqlite3.connect("each.db")) as base, base:
                    base.execute("create table if not exists seen(step, told)")
                    base.execute("insert into seen values(?, ?)", (step, told))
                    return base.execute("select count(*), sum(step) from seen").fetchone()
        """,
        setup="$counted = None",
        after="$counted = add_row($step, str($value))",
        end="print('counted', $counted); os.remove('each.db')",
    ),
    Part(
        name="database with a log beside it",
        top="import sqlite3",
        setup="""
            $waldb = sqlite3.connect("wal.db")
            $waldb.execute("pragma journal_mode=wal")
            $waldb.execute("create table if not exists best(epoch unique, value)")
        """,
        epoch="""
            with $waldb: $waldb.execute("insert or replace into best values(?, ?)", ($epoch, $value))
            moment("row")
        """,
        end="""
            print("best", $waldb.execute("select * from best order by epoch").fetchall())
            $waldb.close(); $waldb = None
            for name in glob.glob("wal.db*"): os.remove(name)
        """,
    ),
    Part(
        name="shelf",
        top="import shelve",
        after="""
            with shelve.open("shelf") as shelf: shelf[str($step)] = loss.item()
        """,
        end="""
            with shelve.open("shelf") as shelf: print("shelf", sorted(shelf.items())[-4:], len(shelf))
            shelf = None
            for name in glob.glob("shelf*"): os.remove(name)
        """,
    ),
    Part(
        name="LMDB",
        top="""
            try: import lmdb
            except ImportError: lmdb = None
        """,
        setup="$env = lmdb and lmdb.open('cache.lmdb', map_size=1 << 20)",
        after="""
            if $env is not None:
                with $env.begin(write=True) as writing: writing.put(f"{$step:06}".encode(), repr($value).encode())
                writing = None
        """,
        end="""
            if $env is not None:
                with $env.begin() as reading: print("lmdb", list(reading.cursor())[-3:], $env.stat()["entries"])
                $env.close(); $env, reading = None, None
                for name in glob.glob("cache.lmdb/*"): os.remove(name)
        """,
    ),
    Part(
        name="forked child",
        setup="$children = []",
        epoch="""
            $children.append(os.fork())
            if not $children[-1]:
                pathlib.Path(f"child-{$epoch}.txt").write_text(f"{$step} {$value}"); os._exit(3)
            $children[-1] = ($children[-1], os.waitpid($children[-1], 0)[1]); moment("child")
        """,
        end="print('children', [status for _, status in $children], len({pid for pid, _ in $children})); $children = []",
    ),
    Part(
        name="child that answers",
        top="import subprocess",
        setup="$echo = subprocess.Popen(['cat'], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)",
        after="""
            print($step, file=$echo.stdin, flush=True)
            assert int($echo.stdout.readline()) == $step
        """,
        end="""
            $echo.stdin.close(); print("cat", $echo.wait()); $echo.stdout.close(); $echo = None
        """,
    ),
)
