"""What comes from outside of the process: entropy, clocks, databases, descriptors.

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
            $rows = sqlite3.connect("rows.db"); $row = None
            $rows.execute("create table if not exists seen(id integer primary key, step, loss)")
        """,
        after="""
            $row = $rows.execute("insert into seen(step, loss) values(?, ?)", ($step, loss.item())).lastrowid
            if $step % 3 == 0: $rows.commit(); moment("committed")
        """,
        end="""
            $rows.commit()
            pathlib.Path("rows.txt").write_text(repr($rows.execute("select * from seen").fetchall()))
            print("last row", $row, $rows.execute("pragma integrity_check").fetchall())
            $rows.close(); os.remove("rows.db"); $rows = None
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
)
