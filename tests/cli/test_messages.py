"""Messages of the library name arguments; on the command line they name options."""

import pytest

from secondlook.cli.app import name_options


@pytest.mark.parametrize(
    ("command", "message", "expected"),
    [
        ("score", "pass allow_mismatch=True to use it anyway.", "pass --allow-mismatch to use it anyway."),
        ("score", "pass the classifier yourself with classifier=.", "pass the classifier yourself with --model."),
        ("evaluate", "pass output='logits', or repair it.", "pass --output logits, or repair it."),
        ("evaluate", "set on_error='skip' to skip it", "set --on-error skip to skip it"),
        ("evaluate", "pass labels= with an array.", "pass labels= with an array."),
        ("evaluate", "unknown option in 'npz:a.npz?on_error=skip'.", "unknown option in 'npz:a.npz?on_error=skip'."),
        ("info", "pass output='logits'.", "pass output='logits'."),
        ("", "pass views=.", "pass views=."),
    ],
)
def test_arguments_become_options_of_the_command(command: str, message: str, expected: str) -> None:
    assert name_options(message, [command]) == expected
