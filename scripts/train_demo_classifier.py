"""Trains the small network of the demo and writes it as ONNX into the package.

Run: python scripts/train_demo_classifier.py
It needs the development dependencies, and some seconds on one core.
"""

import argparse
import math
from pathlib import Path

import onnx
import torch
from torch import Tensor, nn

import secondlook.cli
from secondlook.arrays import Array, IntArray
from secondlook.cli.demo import digit_images, split_digits

EPOCHS = 60
MODEL = Path(secondlook.cli.__file__).parent / "demo_data" / "digits.onnx"


def network() -> nn.Module:
    """Return an untrained network. float32 [N, 1, 16, 16] -> logits [N, 10]"""
    return nn.Sequential(
        *(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(24 * 4 * 4, 10)),
    )


def pixels(images: Array) -> Tensor:
    """Return the network's input. uint8 [N, 16, 16, 1] -> float32 [N, 1, 16, 16] in [0, 1]"""
    return torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255


def jittered(batch: Tensor, generator: torch.Generator) -> Tensor:
    """Turn, zoom and shift each image a little, as one would train any digit classifier."""

    def random(scale: float) -> Tensor:
        return (2 * torch.rand(len(batch), generator=generator) - 1) * scale

    angle, size = random(math.radians(10)), 1 + random(0.1)
    cosine, sine = angle.cos() / size, angle.sin() / size
    rows = [torch.stack([cosine, sine, random(0.12)], 1), torch.stack([-sine, cosine, random(0.12)], 1)]
    grid = nn.functional.affine_grid(torch.stack(rows, 1), list(batch.shape), align_corners=False)
    return nn.functional.grid_sample(batch, grid, align_corners=False)


def train(images: Array, labels: IntArray, seed: int = 0) -> nn.Module:
    """Return a network trained on those images. uint8 [N, 16, 16, 1], int64 [N]"""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model, inputs, targets = network(), pixels(images), torch.from_numpy(labels)
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(EPOCHS):
        for batch in torch.split(torch.randperm(len(inputs), generator=generator), 32):
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(model(jittered(inputs[batch], generator)), targets[batch])
            torch.autograd.backward(loss)
            optimiser.step()
    return model.eval()


def accuracy(model: nn.Module, images: Array, labels: IntArray) -> float:
    """Return the share of images that are classified rightly."""
    with torch.inference_mode():
        right = model(pixels(images)).argmax(1) == torch.from_numpy(labels)
    return float(right.double().mean())


def without_traces(model: onnx.ModelProto) -> onnx.ModelProto:
    """Drop what the exporter noted of the machine it ran on."""
    for part in (
        model,
        model.graph,
        *model.graph.node,
        *model.graph.value_info,
        *model.graph.input,
        *model.graph.output,
    ):
        del part.metadata_props[:]
        part.doc_string = ""
    return model


def main() -> None:
    """Train, tell the accuracy on images that were not trained on, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=MODEL)
    output: Path = parser.parse_args().output
    images, labels = digit_images()
    seen, unseen = split_digits()
    model = train(images[seen], labels[seen])
    print(f"accuracy on {len(unseen)} unseen digits: {accuracy(model, images[unseen], labels[unseen]):.4f}")
    batch = torch.export.Dim("batch")
    program = torch.onnx.export(
        model,
        (pixels(images[:2]),),
        input_names=["images"],
        output_names=["logits"],
        dynamic_shapes=({0: batch},),
        dynamo=True,
        verbose=False,
        external_data=False,
    )
    if program is None:
        raise SystemExit("the exporter returned no program")
    output.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(without_traces(program.model_proto), output)
    print(f"{output.stat().st_size} bytes in {output}")


if __name__ == "__main__":
    main()
