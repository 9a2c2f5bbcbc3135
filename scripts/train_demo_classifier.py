"""Train the small network of the demo and write it as ONNX into the package.

Run: python scripts/train_demo_classifier.py [--output FILE]

Needs the development dependencies; takes some seconds on one core.
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


def create_network() -> nn.Module:
    """Return an untrained network. float32 [N, 1, 16, 16] -> logits [N, 10]"""
    return nn.Sequential(
        *(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(24 * 4 * 4, 10)),
    )


def normalize(images: Array) -> Tensor:
    """Return the network's input. uint8 [N, 16, 16, 1] -> float32 [N, 1, 16, 16] in [0, 1]"""
    return torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255


def augment(batch: Tensor, generator: torch.Generator) -> Tensor:
    """Rotate, zoom and shift each image slightly, as is usual for digits. [N, 1, H, W] -> [N, 1, H, W]"""

    def sample(scale: float) -> Tensor:
        return (2 * torch.rand(len(batch), generator=generator) - 1) * scale

    angle, size = sample(math.radians(10)), 1 + sample(0.1)
    cosine, sine = angle.cos() / size, angle.sin() / size
    rows = [torch.stack([cosine, sine, sample(0.12)], 1), torch.stack([-sine, cosine, sample(0.12)], 1)]
    grid = nn.functional.affine_grid(torch.stack(rows, 1), list(batch.shape), align_corners=False)
    return nn.functional.grid_sample(batch, grid, align_corners=False)


def train(images: Array, labels: IntArray, seed: int = 0) -> nn.Module:
    """Return a network trained on the images. uint8 [N, 16, 16, 1], int64 [N]"""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model, inputs, targets = create_network(), normalize(images), torch.from_numpy(labels)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(EPOCHS):
        for batch in torch.split(torch.randperm(len(inputs), generator=generator), 32):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(augment(inputs[batch], generator)), targets[batch])
            torch.autograd.backward(loss)
            optimizer.step()
    return model.eval()


def compute_accuracy(model: nn.Module, images: Array, labels: IntArray) -> float:
    """Return the fraction of correct predictions."""
    with torch.inference_mode():
        correct = model(normalize(images)).argmax(1) == torch.from_numpy(labels)
    return float(correct.double().mean())


def remove_metadata(model: onnx.ModelProto) -> None:
    """Remove, in place, what the exporter recorded about the machine it ran on."""
    graph = model.graph
    for item in (model, graph, *graph.node, *graph.value_info, *graph.input, *graph.output):
        del item.metadata_props[:]
        item.doc_string = ""


def main() -> None:
    """Train, print the accuracy on the other images, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=MODEL, help="ONNX file to write (default: that of the demo)")
    output: Path = parser.parse_args().output
    images, labels = digit_images()
    training, test = split_digits()
    model = train(images[training], labels[training])
    print(f"accuracy on {len(test)} test digits: {compute_accuracy(model, images[test], labels[test]):.4f}")
    batch = torch.export.Dim("batch")
    program = torch.onnx.export(
        model,
        (normalize(images[:2]),),
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
    proto = program.model_proto
    remove_metadata(proto)
    onnx.save(proto, output)
    print(f"wrote {output} ({output.stat().st_size:,} bytes)")


if __name__ == "__main__":
    main()
