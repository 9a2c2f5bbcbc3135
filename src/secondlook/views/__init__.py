"""Views: transformed versions of images, as text, as values and as pixels."""

from typing import TYPE_CHECKING

from secondlook.imports import lazy_attributes
from secondlook.views.presets import PRESETS
from secondlook.views.steps import STEPS, view_step
from secondlook.views.view import AUTO, View, ViewSet, ViewsLike, ViewWarning

if TYPE_CHECKING:
    from secondlook.views.engine import apply_view, apply_views, stack_views
    from secondlook.views.sheet import contact_sheet
    from secondlook.views.torch_engine import write_normalized_view

__all__ = [
    "AUTO",
    "PRESETS",
    "STEPS",
    "View",
    "ViewSet",
    "ViewWarning",
    "ViewsLike",
    "apply_view",
    "apply_views",
    "contact_sheet",
    "stack_views",
    "view_step",
    "write_normalized_view",
]

_ENGINE = dict.fromkeys(("apply_view", "apply_views", "stack_views"), "secondlook.views.engine")
_OTHERS = {"contact_sheet": "secondlook.views.sheet", "write_normalized_view": "secondlook.views.torch_engine"}
__getattr__ = lazy_attributes(__name__, _ENGINE | _OTHERS)
