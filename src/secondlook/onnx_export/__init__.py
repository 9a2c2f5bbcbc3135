"""Export to ONNX: a policy and its classifier become one graph that decides, which is compared with the library."""

from secondlook.onnx_export.export import ExportSummary, export_onnx
from secondlook.onnx_export.verification import verify_decider
from secondlook.onnx_export.verification_result import DEFAULT_DIFFERENCE, DifferingImage, Verification

__all__ = ["DEFAULT_DIFFERENCE", "DifferingImage", "ExportSummary", "Verification", "export_onnx", "verify_decider"]
