// Everything is put together once the page is there.
const data = JSON.parse(byId("data").textContent);
const page = { ...data, risks: unpacked(data.risks), methods: data.methods.map(prepared) };

operatingPoint(page, {
  risk: riskPlot(byId("risk-plot"), byId("risk-reading"), page),
  histogram: histogramPlot(byId("histogram-plot"), byId("logarithmic"), page),
  reliability: reliabilityPlot(byId("reliability-plot"), byId("reliability-caption"), page),
});
document.querySelectorAll("table.sortable").forEach(makeSortable);
fillGalleries(page);
