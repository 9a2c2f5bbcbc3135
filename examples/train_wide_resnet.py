"""Train a Wide-ResNet with a given random seed, with or without flips, and export it as ONNX for secondlook.

    python examples/train_wide_resnet.py --data cifar-10-batches-py --out wrn16-2-seed0.onnx --seed 0
    python examples/train_wide_resnet.py --data cifar-10-batches-py --out wrn16-2-noflip.onnx --no-flip
    python examples/train_wide_resnet.py --data train.npz --out wrn28-10.onnx --depth 28 --width 10 --epochs 200

`--data` is the folder of CIFAR-10's official Python files, or an .npz file with `images` (uint8 [N, H, W, 3]) and
`labels` (integers [N]); `--test` is either of the two, to measure the accuracy on. Needs only torch and numpy, and
onnxscript for the export with torch 2.9 or newer. A GPU is used if there is one.

The recipe follows Zagoruyko and Komodakis (2016): SGD with Nesterov momentum 0.9, weight decay 5e-4, batches of 128,
random crops after padding by an eighth of the side, and horizontal flips. A one-cycle learning rate schedule reaches in
30 epochs nearly the accuracy of their 200.
"""

import argparse
import importlib.util
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.262)


class Block(nn.Module):
    """Two 3x3 convolutions, each after batch normalization and ReLU, and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        same_shape = stride == 1 and inputs == outputs
        self.shortcut = None if same_shape else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the features. [N, inputs, H, W] -> [N, outputs, H / stride, W / stride]"""
        activated = functional.relu(self.norm1(x))
        shortcut: Tensor = x if self.shortcut is None else self.shortcut(activated)
        residual: Tensor = self.conv2(functional.relu(self.norm2(self.conv1(activated))))
        return shortcut + residual


class WideResNet(nn.Module):
    """WRN-depth-width: three groups of (depth - 4) / 6 blocks with 16, 32 and 64 times `width` channels."""

    def __init__(self, depth: int, width: int, classes: int) -> None:
        super().__init__()
        channels = [16, 16 * width, 32 * width, 64 * width]
        self.stem = nn.Conv2d(3, channels[0], 3, 1, 1, bias=False)
        blocks: list[nn.Module] = []
        for group in range(3):
            for index in range((depth - 4) // 6):
                inputs = channels[group] if index == 0 else channels[group + 1]
                blocks.append(Block(inputs, channels[group + 1], 2 if index == 0 and group > 0 else 1))
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(channels[3])
        self.head = nn.Linear(channels[3], classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Return logits. float32 [N, 3, H, W], normalized -> [N, classes]"""
        features = functional.relu(self.norm(self.blocks(self.stem(images))))
        logits: Tensor = self.head(features.mean(dim=(2, 3)))
        return logits


def read_images(path: Path, files: tuple[str, ...]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Read images uint8 [N, H, W, 3] and labels int64 [N] from an .npz file, or from CIFAR-10's official files."""
    if path.is_file():
        with np.load(path, allow_pickle=False) as arrays:
            return arrays["images"], arrays["labels"].astype(np.int64)
    import pickle

    root = path / "cifar-10-batches-py" if (path / "cifar-10-batches-py").is_dir() else path
    # Unpickling can run code, so pass only the official files.
    batches = [pickle.loads((root / name).read_bytes(), encoding="bytes") for name in files]
    pixels = np.concatenate([batch[b"data"] for batch in batches]).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(pixels), np.concatenate([batch[b"labels"] for batch in batches]).astype(np.int64)


def load_tensors(path: Path, files: tuple[str, ...], device: str) -> tuple[Tensor, Tensor]:
    """Return images uint8 [N, 3, H, W] and labels int64 [N] on the device."""
    images, labels = read_images(path, files)
    return torch.from_numpy(images.transpose(0, 3, 1, 2).copy()).to(device), torch.from_numpy(labels).to(device)


def normalize(pixels: Tensor) -> Tensor:
    """Return the input of the network. uint8 [N, 3, H, W] -> float32 [N, 3, H, W]"""
    mean, std = (torch.tensor(values, device=pixels.device).view(1, 3, 1, 1) for values in (MEAN, STD))
    return (pixels.float() / 255 - mean) / std


def augment(images: Tensor, *, crop: bool, flip: bool) -> Tensor:
    """Crop each image at random after padding, and flip about half of them. [N, 3, H, W] -> [N, 3, H, W]"""
    count, _, height, width = images.shape
    if crop:
        pad = max(1, height // 8)
        padded = functional.pad(images, (pad, pad, pad, pad))
        top, left = torch.randint(0, 2 * pad + 1, (2, count, 1), device=images.device)
        rows = top + torch.arange(height, device=images.device)
        columns = left + torch.arange(width, device=images.device)
        index = torch.arange(count, device=images.device)
        images = padded[index[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
    if flip:
        flipped = torch.rand(count, 1, 1, 1, device=images.device) < 0.5
        images = torch.where(flipped, images.flip(3), images)
    return images


def train(network: nn.Module, images: Tensor, labels: Tensor, options: argparse.Namespace) -> None:
    """Train in place, and print loss, training accuracy and time of each epoch."""
    steps = max(1, len(images) // options.batch_size)
    optimizer = torch.optim.SGD(network.parameters(), lr=options.rate, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, options.rate, total_steps=options.epochs * steps)
    autocast = torch.autocast(images.device.type, torch.bfloat16, enabled=images.device.type == "cuda")
    for epoch in range(1, options.epochs + 1):
        start, loss_sum, correct = time.perf_counter(), 0.0, 0
        network.train()
        order = torch.randperm(len(images), device=images.device)
        for step in range(steps):
            batch = order[step * options.batch_size : (step + 1) * options.batch_size]
            inputs = augment(normalize(images[batch]), crop=not options.no_crop, flip=not options.no_flip)
            with autocast:
                logits = network(inputs)
                loss = functional.cross_entropy(logits, labels[batch])
            optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            optimizer.step()
            schedule.step()
            loss_sum += loss.item()
            correct += int((logits.argmax(dim=1) == labels[batch]).sum())
        seen = min(len(images), steps * options.batch_size)
        loss_mean, accuracy, seconds = loss_sum / steps, correct / seen, time.perf_counter() - start
        print(f"epoch {epoch}/{options.epochs}: loss {loss_mean:.3f}, accuracy {accuracy:.3f}, {seconds:.1f} s")


@torch.no_grad()
def compute_accuracy(network: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the fraction of correct predictions."""
    network.eval()
    correct = 0
    for inputs, targets in zip(torch.split(images, 1000), torch.split(labels, 1000), strict=True):
        correct += int((network(normalize(inputs)).argmax(dim=1) == targets).sum())
    return correct / len(images)


def export(network: nn.Module, path: Path, height: int, width: int) -> None:
    """Write ONNX: input `images` float32 [batch, 3, H, W], already normalized; output `logits` [batch, classes]."""
    if importlib.util.find_spec("onnxscript") is None:  # the older exporter does not need it
        exporter: dict[str, Any] = {"dynamo": False, "dynamic_axes": {"images": {0: "batch"}, "logits": {0: "batch"}}}
    else:
        shapes = {"images": {0: torch.export.Dim("batch")}}
        exporter = {"dynamo": True, "dynamic_shapes": shapes, "external_data": False}
    example = torch.zeros(2, 3, height, width)
    names: dict[str, Any] = {"input_names": ["images"], "output_names": ["logits"]}
    torch.onnx.export(network.eval().cpu().float(), (example,), str(path), **names, **exporter)


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of CIFAR-10's Python files, or an .npz file")
    parser.add_argument("--test", type=Path, help="test images (default: the test file in the folder of --data)")
    parser.add_argument("--out", type=Path, required=True, help="ONNX file to write")
    parser.add_argument("--depth", type=int, default=16, help="number of layers, 6n + 4 (default: %(default)s)")
    parser.add_argument("--width", type=int, default=2, help="widening factor (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=30, help="training epochs (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=128, help="images per step (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=0.1, help="maximum learning rate (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: %(default)s)")
    parser.add_argument("--no-flip", action="store_true", help="train without horizontal flips")
    parser.add_argument("--no-crop", action="store_true", help="train without random crops")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=device, help="device to train on (default: %(default)s)")
    options = parser.parse_args()
    if options.depth < 10 or (options.depth - 4) % 6:
        parser.error(f"--depth is {options.depth}; expected 6n + 4 with n >= 1, for example 16, 22, 28 or 40")
    return options


def main() -> None:
    """Train, measure the accuracy and export."""
    options = parse_options()
    torch.manual_seed(options.seed)
    train_files = tuple(f"data_batch_{number}" for number in range(1, 6))
    images, labels = load_tensors(options.data, train_files, options.device)
    network = WideResNet(options.depth, options.width, int(labels.max()) + 1).to(options.device)
    parameters = sum(parameter.numel() for parameter in network.parameters())
    print(
        f"WRN-{options.depth}-{options.width}, {parameters:,} parameters, {len(images):,} images, seed {options.seed}"
    )
    train(network, images, labels, options)
    test = options.test or (options.data if options.data.is_dir() else None)
    if test is not None:
        test_images, test_labels = load_tensors(test, ("test_batch",), options.device)
        accuracy = compute_accuracy(network, test_images, test_labels)
        print(f"accuracy on {len(test_images):,} test images: {accuracy:.4f}")
    export(network, options.out, *images.shape[2:])
    print(f"wrote {options.out}; load it with")
    print(f"sl.load_classifier('onnx:{options.out}', output='logits', mean={MEAN}, std={STD})")


if __name__ == "__main__":
    main()
