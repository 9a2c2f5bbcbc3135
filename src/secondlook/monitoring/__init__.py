"""Monitoring of a stream: alarms, estimates and audits of the guarantee, from scores and reviewed labels."""

from secondlook.monitoring.estimates import AccuracyEstimate, count_looks, learn_shifts
from secondlook.monitoring.monitor import Monitor
from secondlook.monitoring.monitor_folder import monitor_scores
from secondlook.monitoring.recertification import recertify
from secondlook.monitoring.scores import SCORE_METADATA, find_class, name_label
from secondlook.monitoring.status import MonitorStatus

__all__ = [
    "SCORE_METADATA",
    "AccuracyEstimate",
    "Monitor",
    "MonitorStatus",
    "count_looks",
    "find_class",
    "learn_shifts",
    "monitor_scores",
    "name_label",
    "recertify",
]
