// The start of the page.
const data = JSON.parse(byId("data").textContent);
const page = { ...data, risks: unpackArray(data.risks), cells: unpackArrays(data.cells), methods: data.methods.map(prepareMethod), policy: preparePolicy(data.policy) };

startOperatingPoint(
  page,
  {
    risk: riskPlot(byId("risk-plot"), byId("risk-reading"), page),
    histogram: histogramPlot(byId("histogram-plot"), byId("logarithmic"), page),
    reliability: reliabilityPlot(byId("reliability-plot"), byId("reliability-caption"), page),
  },
  [gallerySection(page), confusionSection(page), classSection(page)],
);
adaptiveSection(page);
document.querySelectorAll("table.sortable").forEach(makeSortable);
document.querySelectorAll(".scroll").forEach(markOverflow);
