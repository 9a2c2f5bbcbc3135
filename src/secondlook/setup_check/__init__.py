"""Setup checks: whether a classifier is used with the preprocessing and class order that it was trained with."""

from secondlook.setup_check.check import check_setup, find_setup_warnings
from secondlook.setup_check.result import LOOKS_WRONG, Reading, SetupCheck, SetupWarning

__all__ = ["LOOKS_WRONG", "Reading", "SetupCheck", "SetupWarning", "check_setup", "find_setup_warnings"]
