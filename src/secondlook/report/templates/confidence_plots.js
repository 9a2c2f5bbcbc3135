// Confidence of correct and wrong predictions: mirrored histograms, and reliability.
function histogramPlot(figure, logarithmic, page) {
  let method = null;
  let threshold = Infinity;
  let shade = null;
  const scaled = (count) => (logarithmic.checked ? Math.log10(count + 1) : count);

  function spec() {
    const { edges, correct, wrong } = method.histogram;
    const up = Math.max(1e-9, scaled(Math.max(...correct)));
    const down = Math.max(1e-9, scaled(Math.max(...wrong)));
    return {
      height: 300,
      x: { min: edges[0], max: edges[edges.length - 1], label: method.words, format: (v) => `${Number(v.toFixed(3))}` },
      y: { min: -1.05 * down, max: 1.05 * up, label: "images", ticks: countTicks(up, down), format: (v) => formatCount(unscaled(Math.abs(v))) },
      draw,
    };
  }

  const unscaled = (value) => Math.round(logarithmic.checked ? 10 ** value - 1 : value);

  function countTicks(up, down) {
    const counts = logarithmic.checked ? [1, 10, 100, 1e3, 1e4, 1e5, 1e6] : ticks(0, Math.max(up, down), 5).slice(1);
    // A first tick too close to zero would overlap its label.
    const heights = counts.map(scaled).filter((value) => value > 0.06 * (up + down));
    const below = heights.filter((value) => value <= down * 1.05).map((value) => -value);
    return [...below, 0, ...heights.filter((value) => value <= up * 1.05)];
  }

  function draw(chart) {
    const { edges, correct, wrong } = method.histogram;
    for (let bin = 0; bin < correct.length; bin++) {
      const [from, to] = [chart.x(edges[bin]) + 0.5, chart.x(edges[bin + 1]) - 0.5];
      const width = Math.max(0.5, to - from);
      const [zero, top, bottom] = [chart.y(0), chart.y(scaled(correct[bin])), chart.y(-scaled(wrong[bin]))];
      chart.area.append(
        svg("rect", { class: "bar-correct", x: from, y: top, width, height: zero - top }),
        svg("rect", { class: "bar-wrong", x: from, y: zero, width, height: bottom - zero }),
      );
    }
    shade = svg("rect", { class: "shade", x: chart.left, y: chart.top, height: chart.bottom - chart.top });
    chart.area.append(shade);
    move(threshold);
  }

  function move(to) {
    threshold = to;
    const end = Math.max(chart.left, Math.min(chart.right, threshold === Infinity ? chart.right : chart.x(threshold)));
    shade.setAttribute("width", (end - chart.left).toFixed(1));
  }

  function show(chosen) {
    method = chosen;
    chart.spec = spec();
    chart.redraw();
  }

  method = page.methods[0];
  const chart = new Chart(figure, spec());
  logarithmic.addEventListener("change", () => show(method));
  return { show, move };
}

function reliabilityPlot(figure, caption, page) {
  const unit = { min: 0, max: 1, format: (value) => `${Number(value.toFixed(2))}` };
  let method = page.methods[0];

  function draw(chart) {
    chart.area.append(svg("path", { class: "reference", d: chart.path([0, 1], [0, 1]) }));
    if (!method.reliability) return;
    const { confidence, accuracy, images } = method.reliability;
    const largest = Math.max(...images);
    chart.area.append(svg("path", { class: "curve", stroke: methodColor(method.index), d: chart.path(confidence, accuracy) }));
    for (let bin = 0; bin < images.length; bin++) {
      const r = 3 + 7 * Math.sqrt(images[bin] / largest);
      chart.over.append(svg("circle", { cx: chart.x(confidence[bin]), cy: chart.y(accuracy[bin]), r, fill: methodColor(method.index), opacity: 0.75 }));
    }
  }

  function show(chosen) {
    method = chosen;
    caption.textContent = method.reliability
      ? `Accuracy by ${method.words} in 15 bins. On the dotted line, confidence equals accuracy; larger dots mean more images.`
      : `Not shown for ${method.words}: it is not a probability of being correct, so it cannot be compared with the accuracy.`;
    chart.redraw();
  }

  const chart = new Chart(figure, {
    height: 300,
    x: { ...unit, label: "mean confidence" },
    y: { ...unit, label: "accuracy" },
    draw,
  });
  return { show };
}
