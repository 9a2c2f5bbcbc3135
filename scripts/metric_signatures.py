"""Show metrics in the reference as users call them: with `correct` and `confidence`; an extension of Griffe."""

from typing import Any

from griffe import Extension, Function, Parameter, ParameterKind, Parameters


class MetricSignatures(Extension):
    """Replaces the `ranking` of a function that is decorated with `@metric(...)`."""

    def on_function(self, *, func: Function, **_: Any) -> None:
        """Change a signature."""
        if any(str(decorator.value).startswith("metric(") for decorator in func.decorators):
            kind = ParameterKind.positional_or_keyword
            images = [Parameter(name, annotation="ArrayLike", kind=kind) for name in ("correct", "confidence")]
            func.parameters = Parameters(*images, *list(func.parameters)[1:])
