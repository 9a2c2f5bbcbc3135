"""The notebooks under examples/ run from top to bottom, and are stored without outputs."""

import ast
import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))


def run_cell(source: str, namespace: dict[str, object]) -> object:
    """Run a cell as a notebook does, and return the value of its last expression, which a notebook shows."""
    tree = ast.parse(source)
    last = tree.body[-1]
    is_shown = isinstance(last, ast.Expr) and not source.rstrip().endswith(";")
    statements = tree.body[:-1] if is_shown else tree.body
    exec(compile(ast.Module(statements, type_ignores=[]), "cell", "exec"), namespace)
    if not isinstance(last, ast.Expr) or not is_shown:
        return None
    return eval(compile(ast.Expression(last.value), "cell", "eval"), namespace)


def show(value: object) -> str:
    """Return the notebook output of a value."""
    for name in ("_repr_html_", "_repr_png_"):
        if hasattr(value, name):
            return str(getattr(value, name)())
    return repr(value)


def test_there_is_a_notebook() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebook_is_stored_without_outputs_and_runs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import matplotlib.pyplot as plt

    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids), "format 4.5 needs unique ids"
    plt.switch_backend("agg")
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    shown: list[str] = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
            value = run_cell("".join(cell["source"]), namespace)
            shown += [] if value is None else [show(value)]
    for number in plt.get_fignums():
        plt.figure(number).canvas.draw()
    assert plt.get_fignums(), "figures are drawn"
    assert any("auroc" in text for text in shown), "the evaluation is shown"
    assert list(tmp_path.iterdir()) == [], "nothing is written where the notebook runs"
    plt.close("all")
