"""Monitoring: score rows and reviewed labels become alarms, estimates, and whether the guarantee still holds."""

from secondlook.monitoring.alarm import AlarmState, ShiftAlarm
from secondlook.monitoring.audit import AuditedImage, AuditVerdict, judge_audits
from secondlook.monitoring.estimates import AccuracyEstimate, AccuracyEstimator
from secondlook.monitoring.labels import collect_labels, find_class, read_labels
from secondlook.monitoring.monitor import Monitor
from secondlook.monitoring.recertification import Recertification, recertify
from secondlook.monitoring.score_files import MonitoredScores, list_score_files, monitor_scores, read_score_tables
from secondlook.monitoring.score_rows import SCORE_METADATA
from secondlook.monitoring.shift_fit import LabeledScores, ShiftedScores, learn_shift_model
from secondlook.monitoring.shifts import (
    collect_shifts,
    compose_views,
    count_looks,
    learn_shifts,
    list_shifts,
    score_images,
)
from secondlook.monitoring.state import ReadFile, StreamImage
from secondlook.monitoring.status import ESTIMATE, MonitorStatus, format_evidence, format_rate
from secondlook.monitoring.timeline import TimelineWindow

__all__ = [
    "ESTIMATE",
    "SCORE_METADATA",
    "AccuracyEstimate",
    "AccuracyEstimator",
    "AlarmState",
    "AuditVerdict",
    "AuditedImage",
    "LabeledScores",
    "Monitor",
    "MonitorStatus",
    "MonitoredScores",
    "ReadFile",
    "Recertification",
    "ShiftAlarm",
    "ShiftedScores",
    "StreamImage",
    "TimelineWindow",
    "collect_labels",
    "collect_shifts",
    "compose_views",
    "count_looks",
    "find_class",
    "format_evidence",
    "format_rate",
    "judge_audits",
    "learn_shift_model",
    "learn_shifts",
    "list_score_files",
    "list_shifts",
    "monitor_scores",
    "read_labels",
    "read_score_tables",
    "recertify",
    "score_images",
]
