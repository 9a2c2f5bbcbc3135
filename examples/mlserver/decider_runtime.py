"""An MLServer runtime for an ONNX file of `secondlook export`; secondlook itself is not needed."""

import asyncio

from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.errors import InferenceError
from mlserver.types import InferenceRequest, InferenceResponse, MetadataTensor, ResponseOutput
from mlserver.utils import get_model_uri
from onnxruntime import InferenceSession, NodeArg

DATATYPES = {"tensor(uint8)": "UINT8", "tensor(float)": "FP32", "tensor(int64)": "INT64", "tensor(bool)": "BOOL"}


class DeciderRuntime(MLModel):  # type: ignore[misc]
    """Runs an ONNX file: input `images`; outputs `label`, `confidence`, `accept` and others."""

    async def load(self) -> bool:
        """Open the file, and describe its inputs and outputs in the metadata of the model."""
        self.session = InferenceSession(await get_model_uri(self.settings))
        self.inputs = [_describe(tensor) for tensor in self.session.get_inputs()]
        self.outputs = [_describe(tensor) for tensor in self.session.get_outputs()]
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Decide about images; returns the requested outputs, by default all."""
        names = [tensor.name for tensor in payload.outputs or self.outputs]
        try:
            images = {tensor.name: NumpyCodec.decode_input(tensor) for tensor in payload.inputs}
            arrays = await asyncio.to_thread(self.session.run, names, images)
        except Exception as error:  # for example images of a wrong size
            raise InferenceError(f"the images cannot be decided: {error}") from error
        datatypes = {tensor.name: tensor.datatype for tensor in self.outputs}
        outputs = [  # NumpyCodec would make [n, 1] out of [n]
            ResponseOutput(name=name, datatype=datatypes[name], shape=list(array.shape), data=array.ravel().tolist())
            for name, array in zip(names, arrays, strict=True)
        ]
        return InferenceResponse(model_name=self.name, model_version=self.version, outputs=outputs)


def _describe(tensor: NodeArg) -> MetadataTensor:
    shape = [size if isinstance(size, int) else -1 for size in tensor.shape]
    return MetadataTensor(name=tensor.name, datatype=DATATYPES[tensor.type], shape=shape)
