"""Export to ONNX: a policy and its classifier become one graph that decides, which is compared with the library."""

from secondlook.onnx_export.export import export_onnx
from secondlook.onnx_export.verification import verify_export

__all__ = ["export_onnx", "verify_export"]
