"""The tiny network as an MLServer runtime; the server imports this file in its own environment."""

import time
from pathlib import Path

from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse
from tiny_network import TinyNetwork  # type: ignore[import-not-found]


class TinyRuntime(MLModel):  # type: ignore[misc]
    async def load(self) -> bool:
        self.network = TinyNetwork.load(Path(self.settings.parameters.uri))
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        images = NumpyCodec.decode_input(payload.inputs[0])
        Path(self.settings.parameters.uri).with_suffix(".used").touch()
        time.sleep(float(self.settings.parameters.extra["seconds"]))
        output = NumpyCodec.encode_output("scores", self.network.logits(images))
        return InferenceResponse(model_name=self.name, model_version=self.version, outputs=[output])
