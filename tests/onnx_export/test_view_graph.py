"""Views as ONNX operators against the CPU engine."""

import warnings
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secondlook.arrays import Array
from secondlook.errors import ExportError
from secondlook.onnx_export.graph import LOWEST_OPSET, Graph, Tensor
from secondlook.onnx_export.image_graph import add_view
from secondlook.operations import Frame
from secondlook.views import PRESETS, View, ViewSet, ViewWarning, apply_view, view_step
from tests.onnx_export.running import build_model, run_graph
from tests.views.test_torch_engine import STEP_TEXTS, is_exact, make_images

OPSETS = [LOWEST_OPSET, 20, 22]


def apply_in_graph(images: Array, text: str, opset: int = LOWEST_OPSET) -> Array:
    frame = Frame(*images.shape[1:])
    (result,) = run_graph(lambda graph, tensor: add_view(graph, tensor, View.parse(text), frame), images, opset=opset)
    assert result.shape == images.shape
    assert result.dtype == images.dtype
    return result


@pytest.mark.parametrize("shape", [(3, 32, 32, 3), (2, 41, 29, 1), (1, 224, 224, 3)], ids=str)
@pytest.mark.parametrize("preset", list(PRESETS))
def test_presets_equal_the_cpu_engine(preset: str, shape: tuple[int, ...]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ViewWarning)
        views = ViewSet(preset)
    pixels, frame = make_images(1, shape), Frame(*shape[1:])
    found = run_graph(lambda graph, tensor: [add_view(graph, tensor, view, frame) for view in views], pixels)
    for text, result in zip(views.texts, found, strict=True):
        largest = np.abs(result.astype(int) - apply_view(pixels, text)).max()
        assert largest <= (0 if is_exact(text, shape) else 1), text


@settings(max_examples=100, deadline=None)
@given(
    st.lists(STEP_TEXTS, min_size=1, max_size=3),
    st.integers(0, 10**6),
    st.tuples(st.integers(1, 3), st.integers(1, 40), st.integers(1, 40), st.just(3)),
    st.sampled_from(OPSETS),
)
def test_any_view_equals_the_cpu_engine(steps: list[str], seed: int, shape: tuple[int, ...], opset: int) -> None:
    text = "+".join(steps)
    pixels = make_images(seed, shape)
    largest = np.abs(apply_in_graph(pixels, text, opset).astype(int) - apply_view(pixels, text)).max()
    # A contrast depends on the mean, whose last bit may differ, and so may a value half-way between two pixels.
    assert largest <= (0 if is_exact(text, shape) and "contrast" not in text else 1), text
    values = (pixels / 255).astype(np.float32)
    np.testing.assert_allclose(apply_in_graph(values, text, opset), apply_view(values, text), atol=3e-4)


def test_shift_out_of_the_image_is_black() -> None:
    assert not apply_in_graph(make_images(0, (2, 8, 8, 3)), "shift:9,0").any()


def test_grid_of_a_warp_takes_little_room() -> None:
    images = make_images(0, (1, 224, 224, 3))
    model = build_model(
        lambda graph, tensor: add_view(graph, tensor, View.parse("rotate:7"), Frame(224, 224, 3)), {"images": images}
    )
    assert model.ByteSize() < 8000


@pytest.mark.usefixtures("temporary_registry")
def test_step_of_a_user_with_an_onnx_form_is_exported() -> None:
    def add_posterization(graph: Graph, images: Tensor, bits: float) -> Tensor:
        return graph.op("Floor", images * 2**bits) / 2**bits

    @view_step("posterize:BITS", onnx=add_posterization)
    def posterize(images: Array, bits: float) -> Array:
        """Keep the highest bits of each pixel."""
        return np.floor(images * 2**bits) / 2**bits

    images = make_images(0, (2, 6, 5, 3))
    for text in ("posterize:2", "hflip+posterize:3", "posterize:2+rotate:5"):
        assert np.abs(apply_in_graph(images, text).astype(int) - apply_view(images, text)).max() <= 1


@pytest.mark.usefixtures("temporary_registry")
def test_step_of_a_user_without_an_onnx_form_is_refused() -> None:
    @view_step("invert")
    def invert(images: Array) -> Array:
        return 1 - images

    with pytest.raises(ExportError, match="hflip\\+invert"):
        apply_in_graph(make_images(0, (1, 4, 4, 3)), "hflip+invert")


FAULTY_FORMS: dict[str, Callable[[Graph, Tensor], object]] = {
    "unknown operator": lambda graph, images: graph.op("Nothing", images),
    "unknown attribute": lambda graph, images: graph.op("Floor", images, strength=3),
    "attribute without a form in ONNX": lambda graph, images: graph.op("Floor", images, strength=object()),
    "one channel": lambda graph, images: graph.op("ReduceMean", images, np.array([3]), keepdims=1),
    "too few axes": lambda graph, images: graph.op("ReduceMean", images, np.array([3]), keepdims=0),
    "another size": lambda graph, images: graph.op("Slice", images, np.array([0]), np.array([2]), np.array([1])),
    "no tensor": lambda _graph, _images: 1.0,
    "fails": lambda _graph, _images: 1 / 0,
}


@pytest.mark.usefixtures("temporary_registry")
@pytest.mark.parametrize("fault", FAULTY_FORMS)
def test_faulty_onnx_form_names_the_view(fault: str) -> None:
    @view_step("broken", onnx=FAULTY_FORMS[fault])
    def keep(images: Array) -> Array:
        return images

    with pytest.raises(ExportError, match="hflip\\+broken") as caught:
        apply_in_graph(make_images(0, (1, 4, 4, 3)), "hflip+broken")
    assert "\n" not in str(caught.value)
