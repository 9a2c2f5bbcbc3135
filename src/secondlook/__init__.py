"""secondlook tells people when their image classifier is wrong."""

from typing import TYPE_CHECKING

from secondlook.lazy import lazy_attributes

if TYPE_CHECKING:
    from secondlook.errors import SecondLookError
    from secondlook.views.engine import apply_views, iter_views
    from secondlook.views.presets import PRESETS
    from secondlook.views.sheet import contact_sheet
    from secondlook.views.steps import view_step
    from secondlook.views.view import View
    from secondlook.views.view_set import ViewSet, ViewWarning

__version__ = "0.1.0"

__all__ = [
    "PRESETS",
    "SecondLookError",
    "View",
    "ViewSet",
    "ViewWarning",
    "__version__",
    "apply_views",
    "contact_sheet",
    "iter_views",
    "view_step",
]

__getattr__ = lazy_attributes(
    __name__,
    {
        "PRESETS": "secondlook.views.presets",
        "SecondLookError": "secondlook.errors",
        "View": "secondlook.views.view",
        "ViewSet": "secondlook.views.view_set",
        "ViewWarning": "secondlook.views.view_set",
        "apply_views": "secondlook.views.engine",
        "contact_sheet": "secondlook.views.sheet",
        "iter_views": "secondlook.views.engine",
        "view_step": "secondlook.views.steps",
    },
)


def __dir__() -> list[str]:
    return sorted(__all__)
