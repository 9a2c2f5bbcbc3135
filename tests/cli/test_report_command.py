"""`secondlook report`: warnings of the run at the top of the page, and judged images only."""

import json
import re
from pathlib import Path

import secondlook as sl
from tests.cli.conftest import Here

LINE = "evaluate --model onnx:model.onnx --data folder:val --metric auroc --resamples 5 --no-check --out run"
EVALUATE = LINE.split()
HARMFUL = "identity hflip shift:1,0"


def test_harmful_views_are_warned_of_at_the_top_of_the_page(here: Here) -> None:
    here.ok(*EVALUATE, "--views", HARMFUL, "--method", "mean", "--quiet")
    done = here.ok("report", "run", "--no-galleries")
    assert "hflip" in done.err
    assert "the views 'auto' leave out harmful ones" in done.err
    page = Path("run/report.html").read_text(encoding="utf-8")
    (warning,) = re.findall(r'<p class="warning".*?</p>', page)
    assert "hflip" in warning
    assert page.index(warning) < page.index('id="lead"')
    told = here("report", "run", "--no-galleries", "--json")
    assert "hflip" in told.json["warnings"][0]
    quiet = here("report", "run", "--no-galleries", "--quiet")
    assert (quiet.out, quiet.err) == ("", "")


def test_images_set_apart_by_the_run_are_not_reported(here: Here) -> None:
    here.ok(*EVALUATE, "--method", "msr", "--method", "blend", "--quiet")
    apart = len(sl.open_run("run").record.tuning)
    assert apart == 100, "views were chosen on them"
    here.ok("report", "run")
    page = Path("run/report.html").read_text(encoding="utf-8")
    assert "<dt>Images set apart</dt><dd>100</dd>" in page
    assert "Of 300 images" in page
    data = page.partition('id="data">')[2].partition("</script>")[0]
    pictures = {one["id"] for one in json.loads(data)["pictures"]}
    assert pictures
    assert not pictures & set(sl.open_run("run").record.tuning)


def test_recommendation_names_the_option(here: Here) -> None:
    """Without the views 'identity' is the worst."""
    done = here.ok(
        *EVALUATE, "--views", "identity hflip+shift:4,4 hflip", "--predict-from", "views", "--method", "mean"
    )
    assert "Predict from the image: " in done.out
    assert "Options to add: --predict-from image" in done.out
    assert "predict_from" not in done.out
