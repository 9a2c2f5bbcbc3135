"""Export to ONNX: a policy and its classifier become one graph that decides, which is compared with the library."""

from secondlook.onnx_export.export import ExportSummary, export_onnx
from secondlook.onnx_export.verification import Verification, verify_export

__all__ = ["ExportSummary", "Verification", "export_onnx", "verify_export"]
