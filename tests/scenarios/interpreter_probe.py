"""A script that writes down all it sees of its process; its docstring is compared, too."""

# ruff: noqa: B023, B905, E402, I001, SIM115 (what is loaded is looked at before all imports)

import sys

_MODULES = sorted(sys.modules)
_FRAMES = []
_frame = sys._getframe()
while _frame is not None:
    _FRAMES.append(_frame.f_code.co_name)
    _frame = _frame.f_back

import __main__
import atexit
import builtins
import gc
import inspect
import json
import linecache
import locale
import logging
import os
import pickle
import resource
import signal
import subprocess
import tempfile
import threading
import warnings

SEEN = {}
SAID_LATER = []


class Thing:
    """Of `__main__`: what pickling and `inspect` have to find."""

    def method(self):
        return 1


def put(name, value):
    """Keeps what JSON can hold; the rest by its text, without addresses."""
    if not isinstance(value, (str, int, float, bool, type(None), list, dict)):
        value = " ".join(w for w in repr(value).split() if not w.startswith("0x"))
    SEEN[name] = value


def look(name, question):
    try:
        put(name, question())
    except BaseException as error:
        put(name, f"{type(error).__name__}: {error}")


def streams(when):
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        for part in ("line_buffering", "write_through", "encoding", "errors", "name", "mode"):
            look(f"{when}.{name}.{part}", lambda: getattr(stream, part))
        look(f"{when}.{name}.types", lambda: [type(s).__name__ for s in (stream, stream.buffer)])
        look(f"{when}.{name}.raw", lambda: type(stream.buffer.raw).__name__)
        look(f"{when}.{name}.is_original", lambda: stream is getattr(sys, f"__{name}__"))
        look(f"{when}.{name}.isatty", stream.isatty)


def hooks(when):
    for name in ("excepthook", "displayhook", "unraisablehook", "breakpointhook"):
        look(f"{when}.sys.{name}", lambda: getattr(sys, name) is getattr(sys, f"__{name}__"))
    look(f"{when}.threading.excepthook", lambda: threading.excepthook is threading.__excepthook__)
    put(f"{when}.sys.trace", [sys.gettrace(), sys.getprofile(), threading.gettrace()])
    for name in ("open", "print", "input", "__import__", "exec", "exit", "quit"):
        value = getattr(builtins, name)
        put(f"{when}.builtins.{name}", [type(value).__name__, getattr(value, "__module__", "")])
    for name in (
        "replace",
        "rename",
        "link",
        "unlink",
        "remove",
        "fork",
        "_exit",
        "mkdir",
        "execv",
        "execve",
    ):
        put(f"{when}.os.{name}", type(getattr(os, name)).__name__)
    put(f"{when}.builtins.names", sorted(vars(builtins)))
    put(f"{when}.sys.meta_path", [getattr(f, "__name__", type(f).__name__) for f in sys.meta_path])
    put(f"{when}.sys.path_hooks", len(sys.path_hooks))
    put(f"{when}.warnings.filters", repr(warnings.filters))
    put(f"{when}.warnings.showwarning", warnings.showwarning.__module__)
    put(f"{when}.logging.root", [len(logging.root.handlers), logging.root.level])
    put(f"{when}.locale", locale.setlocale(locale.LC_ALL, None))
    put(f"{when}.gc", [gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), gc.get_debug()])
    put(f"{when}.gc.callbacks", len(gc.callbacks))
    put(f"{when}.sys.recursion_limit", sys.getrecursionlimit())
    put(f"{when}.sys.switch_interval", sys.getswitchinterval())


def process(when):
    for number in sorted(signal.valid_signals()):
        name = getattr(number, "name", str(number))
        handler = signal.getsignal(number)
        put(f"{when}.signal.{name}", getattr(handler, "__qualname__", str(handler)))
    look(f"{when}.signal.mask", lambda: sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])))
    look(f"{when}.signal.ignored", lambda: status("SigIgn"))
    look(f"{when}.signal.caught", lambda: status("SigCgt"))
    look(f"{when}.signal.wakeup_fd", lambda: signal.set_wakeup_fd(-1))
    put(f"{when}.threads", sorted(thread.name for thread in threading.enumerate()))
    put(f"{when}.open_files", open_files())
    with open(os.devnull) as file:
        put(f"{when}.next_descriptor", file.fileno())
    look(f"{when}.environment", lambda: dict(sorted(os.environ.items())))
    look(f"{when}.cwd", os.getcwd)


def status(word):
    with open("/proc/self/status") as file:
        return next(line.split()[1] for line in file if line.startswith(word))


def open_files():
    found = []
    for number in sorted(map(int, os.listdir("/proc/self/fd"))):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
        if number > 2:
            found.append("".join(c for c in target if not c.isdigit()))
    return sorted(found)


def once():
    for name in ("argv", "orig_argv", "warnoptions", "_xoptions", "executable", "prefix"):
        look(f"sys.{name}", lambda: getattr(sys, name))
    # torch 2.6 adds a folder of its own, with another name in each process
    instantiator = sys.modules.get("torch.distributed.nn.jit.instantiator")
    own = getattr(instantiator, "INSTANTIATED_TEMPLATE_DIR_PATH", None)
    put("sys.path", [path for path in sys.path if path != own])
    put("sys.modules", _MODULES)
    for name in dir(sys.flags):
        if not name.startswith(("_", "n_", "count", "index")):
            put(f"sys.flags.{name}", getattr(sys.flags, name))
    put("sys.dont_write_bytecode", sys.dont_write_bytecode)
    put("sys.pycache_prefix", sys.pycache_prefix)
    put("sys.names", [n for n in dir(sys) if n not in ("last_type", "last_value", "last_exc")])
    put("main.names", sorted(n for n in vars(__main__) if n.startswith("__")))
    for name in ("name", "doc", "package", "file", "cached", "loader", "spec", "annotations"):
        look(f"main.__{name}__", lambda: globals()[f"__{name}__"])
    put("main.is_globals", vars(__main__) is globals())
    put("main.builtins_is_module", __builtins__ is builtins)
    look("main.source_of_loader", lambda: len(__loader__.get_source(__loader__.name)))
    look("main.inspect", lambda: inspect.getsource(Thing.method))
    look("main.linecache", lambda: linecache.getline(__file__, 1))
    look("main.pickle", lambda: type(pickle.loads(pickle.dumps(Thing()))) is Thing)
    look("main.inspect_module", lambda: inspect.getmodule(Thing) is __main__)
    put("main.import", __import__("__main__") is __main__)
    put("frames.beneath", _FRAMES)
    put("frames.outermost_file", os.path.basename(inspect.stack()[-1].filename))
    put("hash.text", hash("text"))
    put("hash.set", list({"red", "green", "blue", "cyan", "black", "white"}))
    put("process.umask", [os.umask(0o22), os.umask(0o22)][0])
    put("process.leads_session", os.getsid(0) == os.getpid())
    put("process.leads_group", os.getpgrp() == os.getpid())
    put("process.niceness", os.nice(0))
    put("process.affinity", sorted(os.sched_getaffinity(0)))
    put("process.parent", commands_of(os.getppid()))
    put("process.command", commands_of(os.getpid()))
    look("process.name", lambda: open("/proc/self/comm").read())
    put("process.real_ids", [os.getuid(), os.geteuid(), os.getgid(), os.getegid()])
    for name in (n for n in dir(resource) if n.startswith("RLIMIT_")):
        look(f"process.{name}", lambda: list(resource.getrlimit(getattr(resource, name))))
    put("tempfile", tempfile.gettempdir())
    for name in ("json", "trace", "lzma", "probe_neighbour"):
        look(f"import.{name}", lambda: __import__(name).__file__)


def commands_of(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().decode().split("\0")[:-1]
    except OSError:
        return []
    return [os.path.basename(word) for word in words]


CHILD = """
import json, os, sys
print(json.dumps([
    sorted(os.environ.items()), sys.flags.hash_randomization,
    sorted(map(int, os.listdir("/proc/self/fd")))[:-1],
    sys.stdout.line_buffering, os.getcwd(),
]))
"""


def children():
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True)
    names = ("environment", "hash_randomization", "descriptors", "buffering", "cwd")
    for name, value in zip(names, json.loads(done.stdout)):
        put(f"subprocess.{name}", value)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            names = sorted(thread.name for thread in threading.enumerate())
            os.write(write, json.dumps([names, len(sys.argv), status("SigCgt")]).encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read) as file:
        put("fork", json.loads(file.read()))
    os.waitpid(pid, 0)


def train():
    import torch

    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
    put("torch.threads", torch.get_num_threads())
    put("torch.settings", [torch.is_grad_enabled(), str(torch.get_default_dtype())])
    put("torch.deterministic", torch.are_deterministic_algorithms_enabled())
    put("torch.anomaly", torch.is_anomaly_enabled())
    put("torch.model.names", sorted(vars(model)))
    put("torch.optimizer.names", sorted(vars(optimizer)))
    put("torch.optimizer.class", type(optimizer).__mro__[0].__qualname__)
    put("torch.hooks", [len(model._forward_hooks), len(model._forward_pre_hooks)])
    put("torch.state", sorted(model.state_dict()) + sorted(optimizer.state_dict()))
    put("torch.step.signature", str(inspect.signature(optimizer.step)))
    put("torch.backward.signature", str(inspect.signature(torch.Tensor.backward)))
    put("torch.backward.module", torch.Tensor.backward.__module__)


def moment(when):
    streams(when)
    hooks(when)
    process(when)


def at_exit():
    put("exit.main_is_ours", sys.modules["__main__"].__dict__ is globals())
    put("exit.argv", sys.argv)
    put("exit.threads", sorted(thread.name for thread in threading.enumerate()))
    put("exit.pickle", bool(pickle.dumps(Thing())))
    put("exit.last", [name for name in ("last_type", "last_value") if hasattr(sys, name)])
    with open(sys.argv[1], "w") as file:
        json.dump(SEEN, file, indent=1, default=str)


if __name__ == "__main__":
    moment("start")
    once()
    children()
    atexit.register(at_exit)
    if sys.argv[2:] == ["torch"]:
        import torch  # noqa: F401

        moment("torch")
        train()
        moment("trained")
