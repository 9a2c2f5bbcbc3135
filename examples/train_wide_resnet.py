"""Train a Wide-ResNet with or without flips, with a seed, and export it as ONNX for secondlook.

    python examples/train_wide_resnet.py --data cifar-10-batches-py --out wrn16-2-seed0.onnx --seed 0
    python examples/train_wide_resnet.py --data cifar-10-batches-py --out wrn16-2-noflip.onnx --no-flip
    python examples/train_wide_resnet.py --data train.npz --out wrn28-10.onnx --depth 28 --width 10 --epochs 200

`--data` is the folder of CIFAR-10's official python files, or an .npz file with `images` (uint8 [N, H, W, 3]) and
`labels` (whole numbers [N]); `--test` may be another of the two to measure accuracy on. Needs torch and numpy alone;
exporting needs the package onnxscript as well, unless torch is older than 2.9.

The recipe is that of Zagoruyko and Komodakis (2016): SGD with Nesterov momentum 0.9, weight decay 5e-4, batches of 128,
random crops after padding by an eighth of the side, horizontal flips unless --no-flip. The learning rate rises and
falls once (1cycle), which in 30 epochs comes close to their 200.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.262)


class Block(nn.Module):
    """Two 3x3 convolutions after batch normalization, beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        changes = stride != 1 or inputs != outputs
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's answer. [N, inputs, H, W] -> [N, outputs, H / stride, W / stride]"""
        active = functional.relu(self.norm1(x))
        around: Tensor = x if self.shortcut is None else self.shortcut(active)
        through: Tensor = self.conv2(functional.relu(self.norm2(self.conv1(active))))
        return around + through


class WideResNet(nn.Module):
    """WRN-depth-width: three groups of (depth - 4) / 6 blocks with 16, 32 and 64 times `width` channels."""

    def __init__(self, depth: int, width: int, classes: int) -> None:
        super().__init__()
        channels = [16, 16 * width, 32 * width, 64 * width]
        self.stem = nn.Conv2d(3, channels[0], 3, 1, 1, bias=False)
        blocks: list[nn.Module] = []
        for group in range(3):
            for place in range((depth - 4) // 6):
                inputs = channels[group] if place == 0 else channels[group + 1]
                blocks.append(Block(inputs, channels[group + 1], 2 if place == 0 and group > 0 else 1))
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(channels[3])
        self.classify = nn.Linear(channels[3], classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Return logits. float32 [N, 3, H, W], normalized -> [N, classes]"""
        features = functional.relu(self.norm(self.blocks(self.stem(images))))
        logits: Tensor = self.classify(features.mean(dim=(2, 3)))
        return logits


def read_images(path: Path, files: tuple[str, ...]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Read uint8 [N, H, W, 3] and int64 [N] from an .npz file, or from files of CIFAR-10's official folder."""
    if path.is_file():
        with np.load(path, allow_pickle=False) as arrays:
            return arrays["images"], arrays["labels"].astype(np.int64)
    import pickle

    root = path / "cifar-10-batches-py" if (path / "cifar-10-batches-py").is_dir() else path
    # A pickle can run code: these are read because they are the official files that the user names.
    batches = [pickle.loads((root / name).read_bytes(), encoding="bytes") for name in files]
    pixels = np.concatenate([batch[b"data"] for batch in batches]).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(pixels), np.concatenate([batch[b"labels"] for batch in batches]).astype(np.int64)


def normalized(pixels: Tensor) -> Tensor:
    """uint8 [N, 3, H, W] -> float32 [N, 3, H, W]"""
    mean, std = (torch.tensor(values, device=pixels.device).view(1, 3, 1, 1) for values in (MEAN, STD))
    return (pixels.float() / 255 - mean) / std


def augmented(images: Tensor, *, crop: bool, flip: bool) -> Tensor:
    """Crop each image at random from its padded self, and mirror half of them. [N, 3, H, W] -> [N, 3, H, W]"""
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
        mirrored = torch.rand(count, 1, 1, 1, device=images.device) < 0.5
        images = torch.where(mirrored, images.flip(3), images)
    return images


def train(network: nn.Module, images: Tensor, labels: Tensor, asked: argparse.Namespace) -> None:
    """Train in place; prints loss, training accuracy and time once an epoch."""
    steps = max(1, len(images) // asked.batch_size)
    optimiser = torch.optim.SGD(network.parameters(), lr=asked.rate, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, asked.rate, total_steps=asked.epochs * steps)
    half = torch.autocast(images.device.type, torch.bfloat16, enabled=images.device.type == "cuda")
    for epoch in range(1, asked.epochs + 1):
        started, loss_sum, right = time.perf_counter(), 0.0, 0
        network.train()
        order = torch.randperm(len(images), device=images.device)
        for step in range(steps):
            chosen = order[step * asked.batch_size : (step + 1) * asked.batch_size]
            batch = augmented(normalized(images[chosen]), crop=not asked.no_crop, flip=not asked.no_flip)
            with half:
                logits = network(batch)
                loss = functional.cross_entropy(logits, labels[chosen])
            optimiser.zero_grad(set_to_none=True)
            torch.autograd.backward(loss)
            optimiser.step()
            schedule.step()
            loss_sum += loss.item()
            right += int((logits.argmax(dim=1) == labels[chosen]).sum())
        seen = min(len(images), steps * asked.batch_size)
        took = time.perf_counter() - started
        print(f"epoch {epoch}/{asked.epochs}: loss {loss_sum / steps:.3f}, right {right / seen:.3f}, {took:.1f} s")


@torch.no_grad()
def accuracy(network: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the share of right answers."""
    network.eval()
    right = sum(
        int((network(normalized(images[at : at + 1000])).argmax(dim=1) == labels[at : at + 1000]).sum())
        for at in range(0, len(images), 1000)
    )
    return right / len(images)


def export(network: nn.Module, path: Path, height: int, width: int) -> None:
    """Write ONNX: input `images` float32 [batch, 3, H, W], normalized outside; output `logits` [batch, classes]."""
    network = network.eval().cpu().float()
    example = torch.zeros(2, 3, height, width)
    try:
        import onnxscript  # noqa: F401 -- what torch exports with since 2.9
    except ImportError:
        torch.onnx.export(
            network,
            (example,),
            str(path),
            input_names=["images"],
            output_names=["logits"],
            dynamic_axes={"images": {0: "batch"}, "logits": {0: "batch"}},
            dynamo=False,
        )
        return
    torch.onnx.export(
        network,
        (example,),
        str(path),
        input_names=["images"],
        output_names=["logits"],
        dynamic_shapes={"images": {0: torch.export.Dim("batch")}},
        external_data=False,
        dynamo=True,
    )


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of CIFAR-10's python files, or an .npz file")
    parser.add_argument("--test", type=Path, help="the same, to measure accuracy on; CIFAR-10's test file by default")
    parser.add_argument("--out", type=Path, required=True, help="the .onnx file to write")
    parser.add_argument("--depth", type=int, default=16, help="6n + 4")
    parser.add_argument("--width", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--rate", type=float, default=0.1, help="greatest learning rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-flip", action="store_true", help="no horizontal flips in training")
    parser.add_argument("--no-crop", action="store_true", help="no random crops in training")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    asked = parser.parse_args()
    if asked.depth < 10 or (asked.depth - 4) % 6:
        parser.error(f"--depth is {asked.depth}; expected 6n + 4, such as 16, 22, 28 or 40")
    return asked


def main() -> None:
    """Train, measure, export."""
    asked = arguments()
    torch.manual_seed(asked.seed)
    train_files = tuple(f"data_batch_{number}" for number in range(1, 6))
    pixels, classes = read_images(asked.data, train_files)
    images = torch.from_numpy(pixels.transpose(0, 3, 1, 2).copy()).to(asked.device)
    labels = torch.from_numpy(classes).to(asked.device)
    network = WideResNet(asked.depth, asked.width, int(classes.max()) + 1).to(asked.device)
    weights = sum(one.numel() for one in network.parameters())
    print(f"WRN-{asked.depth}-{asked.width}, {weights:,} weights, {len(images):,} images, seed {asked.seed}")
    train(network, images, labels, asked)
    tested = asked.test or (asked.data if asked.data.is_dir() else None)
    if tested is not None:
        test_pixels, test_classes = read_images(tested, ("test_batch",))
        test_images = torch.from_numpy(test_pixels.transpose(0, 3, 1, 2).copy()).to(asked.device)
        right = accuracy(network, test_images, torch.from_numpy(test_classes).to(asked.device))
        print(f"accuracy on {len(test_images):,} other images: {right:.4f}")
    export(network, asked.out, *pixels.shape[1:3])
    print(f"written to {asked.out}: load_classifier('onnx:{asked.out}', output='logits', mean={MEAN}, std={STD})")


if __name__ == "__main__":
    main()
