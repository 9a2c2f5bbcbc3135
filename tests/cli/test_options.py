"""The options of all commands together: one name means one thing."""

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from secondlook.cli.app import COMMANDS, load_command
from tests.cli.conftest import Here

OUTPUTS = {"--out", "-o"}
"""Where a command writes, which each of them describes in its own words."""


def list_commands() -> Iterator[tuple[str, Any]]:
    """Yield every command with its full name, such as 'views show'."""
    for name in COMMANDS:
        command = load_command(name)
        for other, one in getattr(command, "commands", {"": command}).items():
            yield f"{name} {other}".strip(), one


def split_sentences(text: str) -> list[str]:
    return re.split(r"(?<=[.!?]) +(?=[A-Z'-])", text)


def test_an_option_means_the_same_in_every_command() -> None:
    """The first sentence of the help is the same; in one command, values may take more forms than in another."""
    meanings: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    forms: dict[str, list[set[str]]] = defaultdict(list)
    for command, one in list_commands():
        for option in (one for one in one.params if one.param_type_name == "option"):
            for flag in option.opts:
                meanings[flag][split_sentences(option.help)[0]].append(command)
                forms[flag].append(set((option.metavar or option.bare_type()).split("|")))
    assert len(meanings) > 80
    different = {flag: dict(found) for flag, found in meanings.items() if len(found) > 1 and flag not in OUTPUTS}
    assert different == {}
    assert [flag for flag, found in forms.items() if flag not in OUTPUTS and not set.intersection(*found)] == []


def test_every_command_and_option_has_help_in_short_sentences() -> None:
    for command, one in list_commands():
        summary, *_, example = one.help.split("\n\n")
        assert len(split_sentences(summary)) <= 2, command
        assert example.strip().startswith(f"Example: secondlook {command}"), command
        for option in one.params:
            if option.name == "help":
                continue
            assert option.help, f"{command} {option.name}"
            assert option.help.endswith("."), f"{command}: {option.help}"


@pytest.mark.parametrize("command", ["calibrate --run run --risk 0.1", "label --model onnx:m.onnx --data d --risk 0.1"])
def test_only_methods_that_thresholds_can_use_are_offered(here: Here, command: str) -> None:
    offered = {name: option for name, one in list_commands() for option in one.params if option.name == "method"}
    assert "bootstrap" in offered["evaluate"].help
    for name in ("calibrate", "label"):
        assert "blend" in offered[name].help
        assert "bootstrap" not in offered[name].help
        completed = [item.value for item in offered[name].shell_complete(None, "b")]
        assert completed == ["blend"]
    for method, told in (("bootstrap", "blend"), ("blnd", "Did you mean 'blend'?"), ("msr,mean", "Repeat")):
        done = here.refuse(*command.split(), "--method", method, told=(repr(method), told))
        assert "known: msr, mean" in done.err
        assert ", bootstrap," not in done.err
