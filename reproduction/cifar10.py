"""Two experiments on CIFAR-10 with public classifiers: the paper's claims where anybody can check them.

Titles and notes are part of the kept results (results/*/tables.md): change them only together with these files.
"""

from reproduction.experiment import (
    PREDICT_FROM,
    By,
    Column,
    Comparison,
    ContactSheets,
    Contrast,
    Experiment,
    Intensity,
    MethodRow,
    MetricExplained,
    ResamplingStudy,
    RiskCoverage,
    Term,
)
from reproduction.paper import (
    AORC_NOTE,
    BOOTSTRAP,
    FLIP_ONLY,
    MEAN,
    MSR,
    PAPER_METHODS,
    PLAIN_AND_FLIPPED,
    SMALL_SHIFTS,
    gamma_points,
    shift_points,
)

REPORTED_METRICS = ("aorc_joint", "aorc", "eaurc_joint", "aupr", "accuracy")
BOTH: tuple[By, ...] = ("x", "D")
RESAMPLING_COUNTS = (10, 30, 100, 300, 1000, 3000)
WINDOWS = (1, 10, 100, 300, 1000, 3000, 10_000, 100_000)
RESAMPLING_SEEDS = (0, 1, 2, 3, 4)

EVERY_METHOD = (
    *PAPER_METHODS,
    FLIP_ONLY,
    *(MethodRow(f"z/|z|p({on})", "max-logit-pnorm", (("on", PREDICT_FROM[on]),), tuned=True) for on in BOTH),
    MethodRow("MSR(x), T fitted", "msr", (("temperature", "fit"),), tuned=True),
    MethodRow("MSR(D), T fitted", "mean", (("temperature", "fit"),), tuned=True),
)

TABLE_1_VIEWS = tuple(
    MethodRow(text, f"view:{text}")
    for text in (
        *("identity", "hflip", "shift:0,5", "shift:0,-5", "hflip+shift:0,-5"),
        *("rotate:3", "vflip", "channels:bgr"),
    )
)


def _resnet_column(names: tuple[str, ...], title: str) -> Column:
    return Column(title, "cifar10-npz", tuple(f"cifar10-{name}" for name in names), "cifar10")


def _wrn_column(names: tuple[str, ...], title: str) -> Column:
    return Column(title, "cifar10-jpeg", tuple(f"wrn-{name}" for name in names), "cifar10")


RESNETS = ("resnet20", "resnet32", "resnet56")
RESNET_COLUMNS = (*(_resnet_column((name,), name) for name in RESNETS), _resnet_column(RESNETS, "ensemble of three"))
SEEDS = tuple(f"seed{seed}" for seed in range(5))
WRN_COLUMNS = (
    *(_wrn_column((name,), f"flips, {name}") for name in SEEDS),
    _wrn_column(("noflip",), "crops only"),
    _wrn_column(("noaug",), "no augmentation"),
    _wrn_column(SEEDS, "ensemble of five"),
)


def _bootstrap_contrast(column: str, by: By) -> Contrast:
    """Return the gain of BS(D) over MSR(D)."""
    terms = (Term(1, column, "BS(D)", by), Term(-1, column, "MSR(D)", by))
    return Contrast(f"BS(D) less MSR(D), class by {by}: {column}", "aorc_joint", terms)


def _accuracy_contrast(column: str) -> Contrast:
    """Return the gain in accuracy when the class is predicted from D."""
    terms = (Term(1, column, "MSR(x)", "D"), Term(-1, column, "MSR(x)", "x"))
    return Contrast(f"accuracy by D less accuracy by x: {column}", "accuracy", terms)


def _column_contrasts(columns: tuple[Column, ...]) -> tuple[Contrast, ...]:
    return (
        *(_bootstrap_contrast(column.title, by) for column in columns for by in BOTH),
        *(_accuracy_contrast(column.title) for column in columns),
    )


def _gain_contrast(question: str, one: str, other: str, method: str) -> Contrast:
    """Return the gain of a method over MSR(x) in one column minus the same gain in another."""
    gain = (Term(1, one, method), Term(-1, one, "MSR(x)"))
    other_gain = (Term(-1, other, method), Term(1, other, "MSR(x)"))
    return Contrast(question, "aorc_joint", (*gain, *other_gain))


FLIP_CONTRASTS = tuple(
    _gain_contrast(f"gain of {method}, {other} less flips, {seed}", other, f"flips, {seed}", method)
    for method in ("MSR(x,hflip)", "MSR(D)")
    for other in ("crops only", "no augmentation")
    for seed in SEEDS
)
ENSEMBLE_CONTRASTS = tuple(
    Contrast(f"{method}, ensemble of five less flips, {seed}", "aorc_joint",
             (Term(1, "ensemble of five", method), Term(-1, f"flips, {seed}", method)))
    for method in ("MSR(x)", "MSR(D)")
    for seed in SEEDS
)  # fmt: skip

RESNET = Experiment(
    "cifar10-resnet",
    "CIFAR-10: public ResNets and their ensemble",
    (
        Comparison("methods", "Every method", RESNET_COLUMNS, EVERY_METHOD, REPORTED_METRICS, BOTH, "all",
                   _column_contrasts(RESNET_COLUMNS)),
        Comparison("single-views", "A single view, as in Table 1", RESNET_COLUMNS, TABLE_1_VIEWS, subset="all"),
        Intensity("gamma", "AORC against gamma", "gamma", RESNET_COLUMNS, gamma_points(), "all"),
        Intensity("shift", "AORC against shift: mean over four directions", "shift in pixels",
                  RESNET_COLUMNS, shift_points(SMALL_SHIFTS), "all"),
        Intensity("shift-flip", "AORC against shift: mean over four directions, with and without a flip",
                  "shift in pixels", RESNET_COLUMNS, shift_points(SMALL_SHIFTS, flips=PLAIN_AND_FLIPPED), "all"),
        ResamplingStudy("resamplings", "BS(D): how many resamplings, how wide a window",
                        (RESNET_COLUMNS[0], RESNET_COLUMNS[2]), RESAMPLING_COUNTS, WINDOWS, RESAMPLING_SEEDS),
        RiskCoverage("rc-resnet20", "Risk against coverage: resnet20", RESNET_COLUMNS[0], PAPER_METHODS, subset="all"),
        RiskCoverage("rc-resnet56", "Risk against coverage: resnet56", RESNET_COLUMNS[2], PAPER_METHODS, subset="all"),
        MetricExplained("aorc", "The areas behind AORC: resnet20", RESNET_COLUMNS[0], MEAN, "all"),
        ContactSheets("views", "Every view of one image", RESNET_COLUMNS[:1]),
    ),
    (
        AORC_NOTE,
        "Views: the printed CIFAR-10 set (13 with the identity), chosen by the paper's authors for another network. "
        "Numbers are on all 10,000 test images.",
        "z/|z|p and the temperature are tuned on 2,000 images drawn by seed 0, which are among the 10,000.",
        "MSR(x,hflip) is shown for the class by x alone: D does not hold the plain flip.",
    ),
)  # fmt: skip

WRN = Experiment(
    "cifar10-wrn",
    "CIFAR-10, compressed: Wide-ResNets trained with flips, without them, with nothing, and five seeds",
    (
        Comparison("methods", "The analogue of Tables 4 and 5", WRN_COLUMNS, (MSR, FLIP_ONLY, MEAN, BOOTSTRAP),
                   REPORTED_METRICS, BOTH, "all",
                   (*_column_contrasts(WRN_COLUMNS), *FLIP_CONTRASTS, *ENSEMBLE_CONTRASTS)),
        Comparison("single-views", "The flip alone", WRN_COLUMNS,
                   tuple(row for row in TABLE_1_VIEWS if row.symbol in ("identity", "hflip")), subset="all"),
        ResamplingStudy("resamplings", "BS(D): how many resamplings, how wide a window",
                        (WRN_COLUMNS[0], WRN_COLUMNS[5]), RESAMPLING_COUNTS, WINDOWS, RESAMPLING_SEEDS),
        RiskCoverage("rc-ensemble", "Risk against coverage: ensemble of five", WRN_COLUMNS[7], PAPER_METHODS,
                     subset="all"),
    ),
    (
        AORC_NOTE,
        "Views: the printed CIFAR-10 set, and the plain flip. All 10,000 test images, strongly compressed.",
        "MSR(x,hflip) is shown for the class by x alone: D does not hold the plain flip.",
    ),
)  # fmt: skip

CIFAR10_EXPERIMENTS = (RESNET, WRN)
