"""What a shell offers when TAB is pressed.

The scripts that teach a shell to ask `supervisor completion SHELL --for WORDS`.

Each line of the answer is a word, a TAB, and what it means; ``:files`` and ``:folders`` ask the
shell for paths.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from supervisor.cli.options.command_parser import COMMANDS, build_parser, load_command, summary_of
from supervisor.errors import UsageError


@dataclass(slots=True)
class Candidates:
    """What a shell offers.

    Attributes:
        words: word → what it means; one that ends with ``=`` is not whole yet.
        paths: which paths are offered beside them.
    """

    words: dict[str, str] = field(default_factory=dict)
    paths: Literal["", "files", "folders"] = ""


def candidates(words: Sequence[str]) -> Candidates:
    """Returns what may stand in the place of the last of `words`.

    Args:
        words: after `supervisor`, the last one as far as it is typed (perhaps empty).
    """
    *before, current = words or [""]
    found = _candidates(before, current)
    fitting = {word: meaning for word, meaning in found.words.items() if word.startswith(current)}
    return Candidates(fitting, found.paths)


def _candidates(before: Sequence[str], current: str) -> Candidates:
    if not before:
        options = {"--help": "show the commands", "--version": "show the version"}
        return Candidates({**{name: summary_of(name) for name in COMMANDS}, **options})
    try:
        parser, command = build_parser(before[0]), load_command(before[0])
    except UsageError:
        return Candidates()
    takes_script = hasattr(command, "parse")
    place = 0
    waiting: argparse.Action | None = None  # an option whose value comes next
    given: set[str] = set()
    for word in before[1:]:
        if waiting is not None:
            waiting = None
        elif word.startswith("-") and word != "-" and not (takes_script and word == "-m"):
            option, equals, _ = word.partition("=")
            action = parser._option_string_actions.get(option)
            if action is not None:
                given.update(action.option_strings)
                waiting = action if action.nargs is None and not equals else None
        elif takes_script:
            return Candidates(paths="files")  # the script's own arguments
        else:
            place += 1
    if waiting is not None:
        return _values(waiting)
    option, equals, _ = current.partition("=")
    action = parser._option_string_actions.get(option)
    if equals and action is not None:
        values = _values(action)
        return Candidates({f"{option}={value}": why for value, why in values.words.items()})
    if current.startswith("-"):
        return Candidates(dict(_options(parser, given)))
    if takes_script:
        return Candidates(paths="files")
    positionals = [action for action in parser._actions if not action.option_strings]
    if place >= len(positionals) and positionals and positionals[-1].nargs in ("*", "+"):
        place = len(positionals) - 1
    return _values(positionals[place]) if place < len(positionals) else Candidates()


def _options(parser: argparse.ArgumentParser, given: set[str]) -> Iterator[tuple[str, str]]:
    for action in parser._actions:
        if action.help == argparse.SUPPRESS:
            continue
        for option in action.option_strings:
            is_again = isinstance(action, argparse._AppendAction)
            if option.startswith("--") and (is_again or option not in given):
                yield option, (action.help or "").replace("%%", "%")


def _values(action: argparse.Action) -> Candidates:
    """What an option or a place takes; its metavar tells."""
    name = action.metavar if isinstance(action.metavar, str) else ""
    if action.choices is not None:
        return Candidates({str(choice): "" for choice in action.choices})
    if name == "NAME|FILE":
        return Candidates(_shipped(action.dest), "files")
    if name == "KEY=VALUE":
        return Candidates(_keys())
    if name == "RUN" or name.startswith(("RUN ", "RUN|")):
        return Candidates(_runs(), "folders" if name == "RUN" else "files")
    if name == "WORD,...":
        from supervisor.cli.overview.run_selection import VERDICTS

        return Candidates(dict.fromkeys(VERDICTS, ""))
    if name == "DIR" or name.startswith("DIR"):
        return Candidates({}, "folders")
    takes_path = getattr(action.type, "__name__", "") == "path"
    return Candidates(paths="files" if takes_path or name in ("PATH", "FILE", "SCRIPT") else "")


def _shipped(kind: str) -> dict[str, str]:
    from supervisor.config import available_configs, available_policies

    files = available_policies() if kind == "policy" else available_configs()
    return {file.name: file.description for file in files}


def _keys() -> dict[str, str]:
    from supervisor.config_check import leaf_keys
    from supervisor.settings import PolicySettings, RunSettings

    keys = [*leaf_keys(RunSettings), *(f"policy.{key}" for key in leaf_keys(PolicySettings))]
    return {f"{key}=": "" for key in keys}


def _runs() -> dict[str, str]:
    """The runs in ``runs``, newest first."""
    found = [path.parent for path in Path("runs").glob("*/run.json")]
    found.sort(key=lambda run: (run / "run.json").stat().st_mtime, reverse=True)
    return {str(run): "run" for run in found}


BASH = r"""# bash completion for supervisor; in ~/.bashrc: eval "$(supervisor completion bash)"
_supervisor() {
    local word meaning path kind="" cur="${COMP_WORDS[COMP_CWORD]}"
    [[ $cur == "=" ]] && cur=""
    COMPREPLY=()
    while IFS=$'\t' read -r word meaning; do
        case $word in
            :files) kind=-f ;;
            :folders) kind=-d ;;
            *) COMPREPLY+=("$word") ;;
        esac
    done < <("${1/#\~/$HOME}" completion bash --for "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    if [[ ${#COMPREPLY[@]} -gt 0 && ${COMPREPLY[0]} == *= ]]; then
        compopt -o nospace 2>/dev/null
    fi
    if [[ -n $kind ]]; then
        compopt -o filenames 2>/dev/null
        while IFS= read -r path; do COMPREPLY+=("$path"); done < <(compgen $kind -- "$cur")
    fi
}
complete -F _supervisor supervisor
"""

ZSH = r"""#compdef supervisor
# zsh completion for supervisor; in ~/.zshrc, after compinit: eval "$(supervisor completion zsh)"
_supervisor() {
    local word meaning kind=""
    local -a whole begun
    while IFS=$'\t' read -r word meaning; do
        case $word in
            :*) kind=$word ;;
            *=) begun+=("${word//:/\\:}:$meaning") ;;
            *) whole+=("${word//:/\\:}:$meaning") ;;
        esac
    done < <("${(Q)words[1]/#\~/$HOME}" completion zsh --for "${(Q@)words[2,CURRENT]}" 2>/dev/null)
    (( $#whole )) && _describe -t values value whole
    (( $#begun )) && _describe -t keys key begun -S ''
    [[ $kind == :files ]] && _files
    [[ $kind == :folders ]] && _files -/
    return 0
}
if [[ ${funcstack[1]} == _supervisor ]]; then
    _supervisor "$@"
else
    compdef _supervisor supervisor
fi
"""

FISH = r"""# fish completion for supervisor; save as ~/.config/fish/completions/supervisor.fish
function __supervisor_complete
    set -l current (commandline -ct)
    set -l words (commandline -opc) "$current"
    for line in ($words[1] completion fish --for $words[2..-1] 2>/dev/null)
        switch $line
            case ':files'
                __fish_complete_path "$current"
            case ':folders'
                __fish_complete_directories "$current" ''
            case '*'
                echo $line
        end
    end
end
complete -c supervisor -f -a '(__supervisor_complete)'
"""

SHELLS = {"bash": BASH, "zsh": ZSH, "fish": FISH}
"""Shell → the script that it evaluates."""


def answer(shell: str, words: Sequence[str]) -> list[str]:
    """Returns the lines that a shell gets for what was typed.

    Args:
        shell: one of `SHELLS`.
        words: after `supervisor`, as the shell splits them; the last is being typed.
    """
    typed = _joined(words) if shell == "bash" else list(words)
    found = candidates(typed)
    # Bash takes what comes after the last "=" for the word.
    cut = typed[-1].rfind("=") + 1 if shell == "bash" and typed else 0
    lines = [f"{word[cut:]}\t{' '.join(why.split())}" for word, why in found.words.items()]
    return [*lines, *([f":{found.paths}"] if found.paths else [])]


def _joined(words: Sequence[str]) -> list[str]:
    """Bash splits at ``=`` (COMP_WORDBREAKS): ``--policy=fp`` comes as three words."""
    joined: list[str] = []
    for word in words:
        if joined and (word == "=" or joined[-1].endswith("=")):
            joined[-1] += word
        else:
            joined.append(word)
    return joined
