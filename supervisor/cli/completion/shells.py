"""The scripts that teach a shell to ask `supervisor completion SHELL --for WORDS`.

Each line of the answer is a word, a TAB, and what it means; ``:files`` and ``:folders`` ask the
shell for paths.
"""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.cli.completion.candidates import candidates

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
