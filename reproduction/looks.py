"""Running the contact sheets: a picture of every view of one image, no classifier needed."""

from reproduction.bench import Bench
from reproduction.experiment import Column, ContactSheets, texts_of
from reproduction.findings import Findings, Picture
from reproduction.needed import Missing
from secondlook.views import ViewSet, contact_sheet


def run_contact_sheets(sheets: ContactSheets, bench: Bench) -> Findings:
    """Return one sheet for each column whose data set is there."""
    pictures: list[Picture] = []
    missing: list[Missing] = []
    for column in sheets.columns:
        lacking = bench.missing_data(column)
        missing += lacking
        if not lacking:
            pictures.append(_sheet(sheets, column, bench))
    return Findings(sheets.title, pictures=tuple(pictures), missing=tuple(missing))


def _sheet(sheets: ContactSheets, column: Column, bench: Bench) -> Picture:
    views = ViewSet(list(texts_of(column.views)))
    image = bench.input_image(column, sheets.part)
    sheet = contact_sheet(image, views)
    name = f"{sheets.name}-{column.data_set}-{column.views}"
    return Picture(name, f"{len(views)} views of an image of {column.title}", sheet.save)
