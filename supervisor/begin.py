"""``python begin.py MODULE ARGS...``: runs `main` of a module of ours in a process of its own.

Started as a file and not with ``-m``, so that neither the working directory nor the folder of this
file is searched for modules: a script's own `supervisor`, `types` or `argparse` is not taken for
ours, and `sys.path` is what plain python has.
"""

import sys

AT_START = frozenset(sys.modules)
"""The names that plain python has loaded, too, before a script begins."""

if __name__ == "__main__":
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]

    import os
    from importlib import import_module
    from importlib.util import module_from_spec, spec_from_file_location

    folder = os.path.dirname(os.path.abspath(__file__))
    spec = spec_from_file_location(
        "supervisor", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    assert spec is not None
    assert spec.loader is not None
    package = module_from_spec(spec)
    sys.modules["supervisor"] = package
    spec.loader.exec_module(package)

    import supervisor.own_process

    supervisor.own_process.loaded_at_start = AT_START
    code = import_module(sys.argv[1]).main(sys.argv[2:])
    sys.exit(code)
