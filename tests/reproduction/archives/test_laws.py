"""The archives obey the laws of all sources, and the documentation lists them."""

from collections.abc import Callable

import pytest

from reproduction import archives
from secondlook.sources import SOURCES
from tests.sources import test_laws as laws

ARCHIVES = [name for name, scheme in SOURCES.items() if scheme.open.__module__ == archives.__name__]
LAWS = [
    laws.test_batches_contain_every_image_with_its_label,
    laws.test_spec_opens_the_same_data_and_subsets_again,
    laws.test_extracted_images_are_the_same,
    laws.test_extracted_images_are_as_small_as_they_are_few,
]


def test_all_archives_are_registered() -> None:
    assert ARCHIVES == ["cifar10", "cifar100", "svhn", "stl10", "imagenet"]


@pytest.mark.parametrize("scheme", ARCHIVES)
@pytest.mark.parametrize("law", LAWS)
def test_archives_obey_the_laws_of_sources(
    law: Callable[[str, Callable[[str], str]], None], scheme: str, samples: Callable[[str], str]
) -> None:
    law(scheme, samples)


@pytest.mark.parametrize("scheme", ARCHIVES)
def test_record_is_complete_and_documented(scheme: str) -> None:
    laws.check_record(scheme, "reproduction.md")
