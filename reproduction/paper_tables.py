"""The paper's tables as data: Table 1 to 5, and the supplement, which is Tables 2 to 5 by every metric."""

from dataclasses import replace

from reproduction.data_sets import SVHN_NOTE
from reproduction.experiment import Column, Comparison, Experiment, MethodRow
from reproduction.published import METRICS, PublishedColumn

MSR = MethodRow("MSR(x)", "msr")
MEAN = MethodRow("MSR(D)", "mean")
BOOTSTRAP = MethodRow("BS(D)", "bootstrap")
FLIP_ONLY = MethodRow("MSR(x,hflip)", "mean", views="identity hflip")
DISTANCE = MethodRow("IAD", "distance")
DIGITS = MethodRow("MSR(digits)", "mean", views="digits")
METHODS = (MSR, MEAN, BOOTSTRAP)

AORC_NOTE = (
    "AORC and eAURC here are those of the paper's tables: on joint risk, errors among the accepted over all images. "
    "Its text defines them on selective risk. On joint risk AORC equals the AUROC of error detection, and eAURC = "
    "(1 - AUROC) x accuracy x (1 - accuracy); all 86 published cells agree with this."
)
VIEWS_NOTE = (
    "The sets of views are those that the released code ran, which made the published numbers: printed up and down "
    "ran the other way, and so did printed turns; the printed x1.1 hides three factors."
)
SPLIT_NOTE = (
    "The paper's experimental images are known to their number only; ours are drawn by seed, unless a file of "
    "indices is given."
)
NOTES = (AORC_NOTE, VIEWS_NOTE, SPLIT_NOTE)

SINGLE_VIEWS = (
    MethodRow("identity", "view:identity"),
    MethodRow("hflip", "view:hflip"),
    MethodRow("shift down 5", "view:shift:0,-5"),
    MethodRow("shift up 5", "view:shift:0,5"),
    MethodRow("hflip + shift up 5", "view:hflip+shift:0,5"),
    MethodRow("rotate 3 clockwise", "view:rotate:-3"),
    MethodRow("vflip", "view:vflip"),
    MethodRow("channel swap", "view:channels:gbr"),
)
"""Table 1's rows by their printed names, each with the view that the released code ran under that name."""

CIFAR10 = Column(
    "CIFAR-10 VGG-8",
    "cifar10",
    ("cifar10-vgg8",),
    "cifar10-released",
    published=PublishedColumn(2, "CIFAR-10", "VGG-8"),
)
CIFAR100 = Column(
    "CIFAR-100 VGG-8",
    "cifar100",
    ("cifar100-vgg8",),
    "cifar100-released",
    published=PublishedColumn(2, "CIFAR-100", "VGG-8"),
)
SVHN = Column(
    "SVHN VGG-8",
    "svhn",
    ("svhn-vgg8",),
    "svhn-released",
    published=PublishedColumn(2, "SVHN", "VGG-8"),
    methods=(DIGITS,),
)
IMAGENET = tuple(
    Column(
        f"ImageNet {name} top-{k}",
        "imagenet",
        (f"imagenet-{name.lower()}",),
        "imagenet-released",
        k=k,
        published=PublishedColumn(3, "ImageNet", "ResNext" if name == "ResNeXt" else name),
    )
    for k in (1, 5)
    for name in ("AlexNet", "ResNet18", "ResNeXt")
)
STL10_ELU = Column(
    "STL-10 ELU",
    "stl10",
    ("stl10-elu",),
    "stl10-elu-released",
    published=PublishedColumn(4, "STL-10", "ELU", "with"),
    methods=(DISTANCE,),
)
STL10_WRN = Column(
    "STL-10 Wide-ResNet with flips",
    "stl10",
    ("stl10-wrn-0",),
    "stl10-released",
    published=PublishedColumn(4, "STL-10", "Wide-ResNet", "with"),
)
STL10_WRN_NOFLIP = Column(
    "STL-10 Wide-ResNet without flips",
    "stl10",
    ("stl10-wrn-noflip",),
    "stl10-released",
    published=PublishedColumn(4, "STL-10", "Wide-ResNet", "without"),
)
STL10_ENSEMBLE = Column(
    "STL-10 Wide-ResNet x5",
    "stl10",
    tuple(f"stl10-wrn-{seed}" for seed in range(5)),
    "stl10-released",
    published=PublishedColumn(5, "STL-10", "Wide-ResNet x5 (NN-Ens)", "with"),
)
STL10_SINGLE = replace(STL10_WRN, published=PublishedColumn(5, "STL-10", "Wide-ResNet", "with"))

SINGLE_VIEW_COLUMNS = (
    Column("SVHN", "svhn", ("svhn-vgg8",), "identity", published=PublishedColumn(1, "SVHN")),
    Column("CIFAR-100", "cifar100", ("cifar100-vgg8",), "identity", published=PublishedColumn(1, "CIFAR-100")),
    Column("STL-10 with flips", "stl10", ("stl10-wrn-0",), "identity",
           published=PublishedColumn(1, "STL-10", flip="with")),
    Column("STL-10 without flips", "stl10", ("stl10-wrn-noflip",), "identity",
           published=PublishedColumn(1, "STL-10", flip="without")),
)  # fmt: skip

TABLE_2 = Comparison("table2", "Table 2: CIFAR-10, CIFAR-100 and SVHN", (CIFAR10, CIFAR100, SVHN), METHODS)
TABLE_3 = Comparison("table3", "Table 3: ImageNet, top-1 and top-5", IMAGENET, METHODS)
TABLE_4 = Comparison(
    "table4",
    "Table 4: STL-10, with the flip alone and the activation distances",
    (STL10_ELU, STL10_WRN, STL10_WRN_NOFLIP),
    (MSR, FLIP_ONLY, MEAN, BOOTSTRAP),
)
TABLE_5 = Comparison("table5", "Table 5: an ensemble of five", (STL10_ENSEMBLE, STL10_SINGLE), METHODS)


def _supplement(table: Comparison) -> Comparison:
    return replace(
        table,
        name=f"supplement-{table.name}",
        title=f"{table.title}: every metric, class by x and by D",
        metrics=tuple(METRICS.values()),
        by=("x", "D"),
    )


TABLES = (
    Experiment(
        "table1",
        "Table 1: confidence from a single view",
        (Comparison("table1", "Table 1", SINGLE_VIEW_COLUMNS, SINGLE_VIEWS, part="experimental"),),
        (
            AORC_NOTE,
            "Rows have their printed names; the view that ran under each name is the released code's: up and down and "
            "the turn the other way, and the channels rotated (RGB to GBR) rather than swapped.",
            SPLIT_NOTE,
            SVHN_NOTE,
        ),
    ),
    Experiment("table2", TABLE_2.title, (TABLE_2,), (*NOTES, SVHN_NOTE)),
    Experiment("table3", TABLE_3.title, (TABLE_3,), NOTES),
    Experiment("table4", TABLE_4.title, (TABLE_4,), NOTES),
    Experiment("table5", TABLE_5.title, (TABLE_5,), NOTES),
    Experiment(
        "supplement",
        "Supplement: Tables 2 to 5 by AORC, eAURC, AUPR and AUROC, class by x and by D",
        tuple(map(_supplement, (TABLE_2, TABLE_3, TABLE_4, TABLE_5))),
        (*NOTES, SVHN_NOTE),
    ),
)
