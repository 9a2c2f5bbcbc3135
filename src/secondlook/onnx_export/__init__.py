"""Export to ONNX: a policy with its classifier as one graph, and its verification against the library."""

from secondlook.onnx_export.export import export_onnx
from secondlook.onnx_export.verification import verify_export

__all__ = ["export_onnx", "verify_export"]
