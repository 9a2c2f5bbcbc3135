"""Views: transformed versions of images, as text, as values and as pixels."""

from typing import TYPE_CHECKING

from secondlook.imports import lazy_attributes
from secondlook.views.operations import (
    Axis,
    Blur,
    Border,
    Copy,
    Filter,
    Frame,
    Luminance,
    Operation,
    Reorder,
    Tone,
    Warp,
    rounds_at_most_once,
)
from secondlook.views.plan import compute_table, plan_operations
from secondlook.views.presets import PRESETS, Preset
from secondlook.views.steps import STEPS, Amount, Step, view_step
from secondlook.views.view import BoundStep, View
from secondlook.views.view_set import (
    AUTO,
    ViewSet,
    ViewsLike,
    ViewWarning,
    as_view_set,
    as_view_set_with_identity,
    as_view_set_with_names,
)

if TYPE_CHECKING:
    from secondlook.views.engine import apply_view, apply_views, iter_views
    from secondlook.views.sheet import contact_sheet
    from secondlook.views.torch_engine import apply_view_to_tensor, write_normalized_view

__all__ = [
    "AUTO",
    "PRESETS",
    "STEPS",
    "Amount",
    "Axis",
    "Blur",
    "Border",
    "BoundStep",
    "Copy",
    "Filter",
    "Frame",
    "Luminance",
    "Operation",
    "Preset",
    "Reorder",
    "Step",
    "Tone",
    "View",
    "ViewSet",
    "ViewWarning",
    "ViewsLike",
    "Warp",
    "apply_view",
    "apply_view_to_tensor",
    "apply_views",
    "as_view_set",
    "as_view_set_with_identity",
    "as_view_set_with_names",
    "compute_table",
    "contact_sheet",
    "iter_views",
    "plan_operations",
    "rounds_at_most_once",
    "view_step",
    "write_normalized_view",
]

__getattr__ = lazy_attributes(
    __name__,
    {
        "apply_view": "secondlook.views.engine",
        "apply_views": "secondlook.views.engine",
        "iter_views": "secondlook.views.engine",
        "contact_sheet": "secondlook.views.sheet",
        "apply_view_to_tensor": "secondlook.views.torch_engine",
        "write_normalized_view": "secondlook.views.torch_engine",
    },
)
