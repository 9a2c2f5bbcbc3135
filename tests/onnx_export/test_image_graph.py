"""Preprocessing and views as ONNX operators against `Preprocessing` and the CPU engine."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_sample_images

from secondlook.arrays import Array
from secondlook.classifiers import Preprocessing
from secondlook.errors import ExportError, SecondLookError
from secondlook.onnx_export.graph import LOWEST_OPSET, Graph, Tensor
from secondlook.onnx_export.image_graph import ImageShape, add_fit, add_normalization, add_view, find_image_shape
from secondlook.operations import Frame
from secondlook.views import PRESETS, View, ViewSet, ViewWarning, apply_view, view_step
from tests.onnx_export.running import build_model, run_graph, run_model
from tests.views.test_torch_engine import STEP_TEXTS, is_exact, make_images

SIDES = st.integers(1, 300)
CROPS = st.integers(1, 120) | st.tuples(st.integers(1, 120), st.integers(1, 120))
DTYPES = st.sampled_from(["uint8", "float32"])


def run_fit(preprocessing: Preprocessing, images: Array, image_shape: tuple[int, ...] | None = None) -> Array:
    shape = find_image_shape(preprocessing, image_shape)
    sizes = ["batch", *shape.given]
    model = build_model(
        lambda graph, tensor: add_fit(graph, tensor, preprocessing, shape), {"images": images}, sizes={"images": sizes}
    )
    check_shape(model, shape.fitted)
    (fitted,) = run_model(model, {"images": images})
    return fitted


def run_normalization(preprocessing: Preprocessing, images: Array) -> Array:
    model = build_model(lambda graph, tensor: add_normalization(graph, tensor, preprocessing), {"images": images})
    height, width, channels = images.shape[1:]
    check_shape(model, (channels, height, width) if preprocessing.layout == "NCHW" else (height, width, channels))
    (inputs,) = run_model(model, {"images": images})
    return inputs


def check_shape(model: Any, expected: tuple[int, ...]) -> None:
    """Assert that the inferred shape of the result is the expected one."""
    assert tuple(size.dim_value for size in model.graph.output[0].type.tensor_type.shape.dim[1:]) == expected


def random_images(seed: int, height: int, width: int, channels: int, dtype: str, count: int = 2) -> Array:
    values = np.random.default_rng(seed).integers(0, 256, (count, height, width, channels))
    return values.astype(np.uint8) if dtype == "uint8" else (values / 255).astype(np.float32)


def resizes_height_first(given: tuple[int, ...], size: tuple[int, ...]) -> bool:
    """Whether Pillow 13 resizes the height before the width, which rounds different intermediate values."""
    shrunk = given[0] - size[0]
    return shrunk > 0 and shrunk > 2 * (given[1] - size[1])


def assert_close(fitted: Array, expected: Array, levels: int = 2) -> None:
    """Assert that pixels differ by a few gray levels at most, and that few differ at all."""
    assert (fitted.dtype, fitted.shape) == (expected.dtype, expected.shape)
    if fitted.dtype == np.float32:
        np.testing.assert_allclose(fitted, expected, atol=5e-5)
        return
    difference = np.abs(fitted.astype(int) - expected)
    assert difference.max() <= levels
    assert np.mean(difference > 0) <= max(0.1, 2 / difference.size)


# --- Resize and crop ---


@settings(max_examples=60, deadline=None)
@given(
    height=SIDES,
    width=SIDES,
    resize=st.integers(1, 100) | st.tuples(st.integers(1, 100), st.integers(1, 100)),
    interpolation=st.sampled_from(["nearest", "bilinear", "bicubic"]),
    channels=st.sampled_from([1, 3]),
    dtype=DTYPES,
    seed=st.integers(0, 9),
)
def test_resized_images_equal_pillow(
    height: int, width: int, resize: Any, interpolation: Any, channels: int, dtype: str, seed: int
) -> None:
    preprocessing = Preprocessing(resize=resize, interpolation=interpolation, channels=channels)
    images = random_images(seed, height, width, channels, dtype, count=1)
    expected = preprocessing.fit(images)
    assume(interpolation == "nearest" or not resizes_height_first(images.shape[1:3], expected.shape[1:3]))
    fitted = run_fit(preprocessing, images, images.shape[1:])
    if interpolation == "nearest":
        np.testing.assert_array_equal(fitted, expected)
    else:
        assert_close(fitted, expected)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_photographs_are_fitted_as_pillow_does(interpolation: Any) -> None:
    """Cut-outs: landscape, portrait, square, tiny and large; tall ones differ by rounding between the passes."""
    preprocessing = Preprocessing(resize=256, crop=224, interpolation=interpolation, channels=3)
    generator = np.random.default_rng(0)
    for photograph in load_sample_images().images:
        for height, width in generator.integers(40, photograph.shape[:2], (6, 2)):
            given = photograph[None, :height, -width:]
            difference = np.abs(run_fit(preprocessing, given).astype(int) - preprocessing.fit(given))
            assert difference.max() <= 2, given.shape
            assert np.mean(difference > 0) <= 0.02, given.shape
    preprocessing = Preprocessing(resize=64, crop=64, channels=3)
    photograph = load_sample_images().images[0][:, :130]
    assert resizes_height_first(photograph.shape[:2], (64 * 427 // 130, 64))
    difference = run_fit(preprocessing, photograph[None]).astype(int) - preprocessing.fit(photograph[None])
    assert np.abs(difference).max() <= 2


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_images_at_input_size_are_kept(interpolation: Any, dtype: str) -> None:
    preprocessing = Preprocessing(resize=16, crop=16, interpolation=interpolation, channels=3)
    for height, width in ((16, 16), (16, 23), (31, 16)):
        images = random_images(0, height, width, 3, dtype)
        np.testing.assert_array_equal(run_fit(preprocessing, images), preprocessing.fit(images))


@settings(max_examples=100, deadline=None)
@given(
    height=SIDES,
    width=SIDES,
    resize=st.none() | st.integers(1, 90) | st.tuples(st.integers(1, 90), st.integers(1, 90)),
    crop=CROPS,
    rounding=st.sampled_from(["even", "down"]),
    channels=st.sampled_from([1, 3]),
    dtype=DTYPES,
)
def test_images_are_cropped_where_the_library_crops(
    height: int, width: int, resize: Any, crop: Any, rounding: Any, channels: int, dtype: str
) -> None:
    # Without interpolation everything is exact.
    options: Any = {"resize": resize, "crop": crop, "crop_rounding": rounding, "interpolation": "nearest"}
    preprocessing = Preprocessing(**options, channels=channels)
    assume(resize is None or max(height, width) / min(height, width) < 50)
    images = random_images(0, height, width, channels, dtype)
    np.testing.assert_array_equal(run_fit(preprocessing, images), preprocessing.fit(images))


@pytest.mark.parametrize(
    ("resize", "crop", "pads"), [(256, 224, False), ((64, 80), 64, False), (64, 65, True), (None, 32, True)]
)
def test_only_possibly_smaller_images_are_padded(resize: Any, crop: int, pads: bool) -> None:
    preprocessing = Preprocessing(resize=resize, crop=crop, channels=3)
    graph = Graph(LOWEST_OPSET)
    add_fit(graph, Tensor(graph, "images", np.uint8), preprocessing, find_image_shape(preprocessing, None))
    assert ("Pad" in {node.op_type for node in graph.nodes}) == pads


@pytest.mark.parametrize("interpolation", ["box", "hamming", "lanczos"])
def test_interpolations_without_an_onnx_form_are_named(interpolation: Any) -> None:
    preprocessing = Preprocessing(resize=(8, 8), interpolation=interpolation, channels=3)
    with pytest.raises(ExportError, match=interpolation):
        run_fit(preprocessing, random_images(0, 5, 5, 3, "uint8"))
    kept = Preprocessing(crop=8, interpolation=interpolation, channels=3)
    assert run_fit(kept, random_images(0, 8, 8, 3, "uint8")).shape == (2, 8, 8, 3)


# --- Channels ---


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("gray", "required"), [("repeat", 3), ("luminance", 1)])
def test_gray_and_color_images_are_converted(gray: Any, required: int, channels: int, dtype: str) -> None:
    preprocessing = Preprocessing(gray=gray, channels=required, size=(20, 30))
    images = random_images(0, 20, 30, channels, dtype)
    converted, expected = run_fit(preprocessing, images), preprocessing.fit(images)
    if dtype == "uint8" or gray == "repeat":
        np.testing.assert_array_equal(converted, expected)
    else:
        np.testing.assert_allclose(converted, expected, rtol=0, atol=2e-7)


def test_luminance_of_a_million_colors_is_exact() -> None:
    red, green, blue = np.indices((256, 256, 16), dtype=np.uint8)
    images = np.stack([red, green, 17 * blue], axis=-1).reshape(1, 256, -1, 3)
    preprocessing = Preprocessing(gray="luminance", channels=1, size=images.shape[1:3])
    luminance = run_fit(preprocessing, images)
    np.testing.assert_array_equal(luminance, preprocessing.fit(images))
    # Of gray pixels it is the gray level.
    np.testing.assert_array_equal(run_fit(preprocessing, np.repeat(luminance, 3, axis=-1)), luminance)


def test_wrong_channels_and_sizes_are_rejected_at_run_time() -> None:
    preprocessing = Preprocessing(gray="repeat", channels=3, size=4)
    with pytest.raises(Exception, match="Expand"):
        run_fit(preprocessing, random_images(0, 4, 4, 2, "uint8"))
    resized = Preprocessing(resize=16, channels=3)
    with pytest.raises(Exception, match=r"Got: 40 Expected: 48"):
        run_fit(resized, random_images(0, 32, 40, 3, "uint8"), (32, 48, 3))


# --- Normalization ---


@settings(max_examples=80, deadline=None)
@given(
    mean=st.sampled_from([(0.0,), (0.5,), (0.485, 0.456, 0.406)]),
    std=st.sampled_from([(1.0,), (0.25,), (0.229, 0.224, 0.225)]),
    scale=st.sampled_from([1 / 255, 1 / 127.5, 1.0]),
    color=st.sampled_from(["RGB", "BGR"]),
    layout=st.sampled_from(["NCHW", "NHWC"]),
    input_dtype=st.sampled_from(["float32", "float16", "uint8"]),
    channels=st.sampled_from([1, 3]),
    dtype=DTYPES,
    size=st.tuples(st.integers(1, 20), st.integers(1, 20)),
    seed=st.integers(0, 99),
)
def test_normalized_inputs_equal(channels: int, dtype: str, size: tuple[int, int], seed: int, **options: Any) -> None:
    try:
        preprocessing = Preprocessing(channels=channels, **options)
    except SecondLookError:
        assume(False)
    images = random_images(seed, *size, channels, dtype)
    if dtype == "float32":
        # Values in between gray levels, and outside of [0, 1], as bicubic interpolation makes them.
        images = (images * 1.1 - 0.05).astype(np.float32)
    inputs, expected = run_normalization(preprocessing, images), preprocessing.normalize(images)
    assert inputs.dtype == expected.dtype
    np.testing.assert_array_equal(inputs, expected)


def test_raw_pixel_inputs_need_no_operators() -> None:
    graph = Graph(LOWEST_OPSET)
    preprocessing = Preprocessing(layout="NHWC", input_dtype="uint8", size=8, channels=3)
    images = Tensor(graph, "images", np.uint8)
    fitted = add_fit(graph, images, preprocessing, find_image_shape(preprocessing, None))
    assert add_normalization(graph, fitted, preprocessing) is images
    assert graph.nodes == []


# --- Shapes ---

COLOR = (0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    ("options", "image_shape", "given_shape", "fitted"),
    [
        ({"size": (32, 40), "channels": 3}, None, (32, 40, 3), (32, 40, 3)),
        ({"size": 28, "channels": 1}, None, (28, 28, 1), (28, 28, 1)),
        ({"size": 28, "mean": COLOR}, None, (28, 28, 3), (28, 28, 3)),
        ({"size": 28, "channels": 3, "gray": "repeat"}, None, (28, 28, None), (28, 28, 3)),
        ({"size": 28, "channels": 1, "gray": "luminance"}, None, (28, 28, None), (28, 28, 1)),
        ({"size": 28, "channels": 1, "gray": "repeat"}, None, (28, 28, 1), (28, 28, 1)),
        ({"resize": 256, "crop": 224, "channels": 3}, None, (None, None, 3), (224, 224, 3)),
        ({"resize": (20, 30), "channels": 3}, None, (None, None, 3), (20, 30, 3)),
        ({"crop": (20, 30), "channels": 1}, None, (None, None, 1), (20, 30, 1)),
        ({"resize": 24, "size": 24, "channels": 3}, None, (None, None, 3), (24, 24, 3)),
        ({}, (32, 48, 3), (32, 48, 3), (32, 48, 3)),
        ({"mean": COLOR}, (32, 48, 3), (32, 48, 3), (32, 48, 3)),
        ({"resize": 16, "channels": 3}, (32, 48, 3), (32, 48, 3), (16, 24, 3)),
        ({"resize": 256, "crop": 224}, (32, 48, 1), (None, None, 1), (224, 224, 1)),
        ({"size": 28, "channels": 3, "gray": "repeat"}, (28, 28, 1), (28, 28, None), (28, 28, 3)),
    ],
)
def test_shapes_are_as_preprocessed_or_as_given(options: Any, image_shape: Any, given_shape: Any, fitted: Any) -> None:
    assert find_image_shape(Preprocessing(**options), image_shape) == ImageShape(given_shape, fitted)


@pytest.mark.parametrize(
    ("options", "image_shape", "offending"),
    [
        ({}, None, "size"),
        ({"channels": 3}, None, "size"),
        ({"resize": 256, "channels": 3}, None, "resize=256"),
        ({"size": 32}, None, "channels"),
        ({"size": 32, "channels": 3}, (28, 28, 3), "28"),
        ({"size": 32, "channels": 3}, (32, 32, 1), "1 channel"),
        ({"resize": 24, "size": 24, "channels": 3}, (32, 48, 3), "36"),
        ({}, (32, 32), "(32, 32)"),
        ({}, (32, 32, 4), "4"),
        ({}, (0, 32, 3), "(0, 32, 3)"),
        ({}, (16.0, 16, 3), "16.0"),
        ({"size": 16, "channels": 3}, (16.0, 16, 3), "16.0"),
        ({}, 16, "16"),
        ({}, ("16", 16, 3), "'16'"),
        ({}, (True, 16, 3), "True"),
    ],
)
def test_unknown_or_contradictory_shapes_are_errors(options: Any, image_shape: Any, offending: str) -> None:
    with pytest.raises(ExportError) as caught:
        find_image_shape(Preprocessing(**options), image_shape)
    assert offending in str(caught.value)
    assert image_shape is None or str(image_shape) in str(caught.value)


# --- Views ---

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


def test_warp_grid_is_small_and_a_shift_out_of_the_image_is_black() -> None:
    images = make_images(0, (1, 224, 224, 3))
    model = build_model(
        lambda graph, tensor: add_view(graph, tensor, View.parse("rotate:7"), Frame(224, 224, 3)), {"images": images}
    )
    assert model.ByteSize() < 8000
    assert not apply_in_graph(make_images(0, (2, 8, 8, 3)), "shift:9,0").any()


@pytest.mark.usefixtures("temporary_registry")
def test_custom_step_is_exported_if_it_has_an_onnx_form() -> None:
    def add_posterization(graph: Graph, images: Tensor, bits: float) -> Tensor:
        return graph.op("Floor", images * 2**bits) / 2**bits

    @view_step("posterize:BITS", onnx=add_posterization)
    def posterize(images: Array, bits: float) -> Array:
        """Keep the highest bits of each pixel."""
        return np.floor(images * 2**bits) / 2**bits

    images = make_images(0, (2, 6, 5, 3))
    for text in ("posterize:2", "hflip+posterize:3", "posterize:2+rotate:5"):
        assert np.abs(apply_in_graph(images, text).astype(int) - apply_view(images, text)).max() <= 1

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
