// Shows one image: zoom and drag, brightness and contrast, window and level of 16-bit images, and the part that the classifier sees.
"use strict";
function makeViewer() {
  const { find, make, countOf } = elements;
  const LEVELS = [0, 1, 2, 4]; // 0 fits the frame; the others multiply image pixels, or the fitted size of smaller images
  const MOST = 16;
  const WHEEL_SPEED = [0.002, 0.05, 0.5]; // by the unit of the wheel: pixels, lines or pages
  const picture = find("picture"), root = find("review");
  const outline = make("div", { id: "seen", title: "What the classifier sees" });
  const buttons = [...document.querySelectorAll("[data-zoom]")];
  const sliders = ["brightness", "contrast", "window", "level"].map(find);
  const [brightness, contrast, width, level] = sliders;
  const exact = find("exact"), showSeen = find("outline");
  let image = null, canvas = null, address = null;
  let display = null; // size, pixel range and crop of the image; null until known, and for views
  let scale = null; // screen pixels per image pixel; null to fit the frame

  function show(element, described = null) {
    image = element;
    [address, display, scale] = [element.src, null, null];
    canvas = make("div", { id: "canvas" }, image, outline);
    picture.replaceChildren(canvas);
    image.draggable = false;
    image.addEventListener("load", layOut, { once: true });
    described?.then((found) => { if (image === element) describe(found); });
    describe(null);
    layOut();
  }

  function clear(...content) {
    [image, canvas, display, scale] = [null, null, null, null];
    picture.replaceChildren(...content);
  }

  function describe(found) {
    display = found;
    const isDeep = found?.bits === 16;
    for (const slider of sliders) slider.closest("label").hidden = isDeep !== [width, level].includes(slider);
    if (isDeep) {
      Object.assign(width, { min: 1, max: Math.max(found.high - found.low, 1) });
      Object.assign(level, { min: found.low, max: found.high });
      resetWindow();
    }
    const [left, top, wide, high] = found?.crop ?? [0, 0, 0, 0];
    Object.entries({ left, top, width: wide, height: high }).forEach(([name, part]) => { outline.style[name] = `${100 * part}%`; });
    showSeen.closest("label").hidden = !found?.crop;
    adjust();
  }

  // --- Zoom ---

  function fitScale() {
    const fitting = Math.min(picture.clientWidth / image.naturalWidth, picture.clientHeight / image.naturalHeight);
    return exact.checked && fitting > 1 ? Math.floor(fitting) : fitting;
  }

  const unitOf = (fitting) => Math.max(1, fitting);

  function layOut() {
    if (!image?.naturalWidth) return;
    const fitting = fitScale();
    const actual = scale ?? fitting;
    canvas.style.width = `${Math.max(1, image.naturalWidth * actual)}px`;
    canvas.style.height = `${Math.max(1, image.naturalHeight * actual)}px`;
    picture.classList.toggle("zoomed", scale !== null);
    for (const button of buttons) {
      const factor = Number(button.dataset.zoom);
      button.setAttribute("aria-pressed", String(factor ? scale !== null && Math.abs(scale / unitOf(fitting) - factor) < 0.01 : scale === null));
    }
  }

  // Changes the scale; the point of the image at (x, y) of the window stays there.
  function setScale(wanted, x, y) {
    if (!image?.naturalWidth) return;
    const frame = picture.getBoundingClientRect(), before = canvas.getBoundingClientRect(), fitting = fitScale();
    [x, y] = [x ?? frame.left + frame.width / 2, y ?? frame.top + frame.height / 2];
    scale = wanted > fitting * 1.001 ? Math.min(wanted, MOST * unitOf(fitting)) : null;
    layOut();
    const after = canvas.getBoundingClientRect();
    const across = (x - before.left) / before.width, down = (y - before.top) / before.height;
    picture.scrollBy({ left: after.left + across * after.width - x, top: after.top + down * after.height - y, behavior: "instant" });
  }

  const zoomTo = (factor, x, y) => image && setScale(factor * unitOf(fitScale()), x, y);

  // The next level in a direction; after the largest one, the image fits the frame again.
  function step(direction) {
    if (!image) return;
    const fitting = fitScale(), current = scale ?? fitting;
    const levels = LEVELS.map((factor) => Math.max(fitting, factor * unitOf(fitting)));
    const next = direction > 0 ? levels.find((one) => one > current * 1.01) : levels.findLast((one) => one < current / 1.01);
    setScale(next ?? fitting);
  }

  picture.addEventListener("wheel", (event) => {
    if (!image || (event.deltaY > 0 && scale === null)) return; // the page scrolls
    event.preventDefault();
    setScale((scale ?? fitScale()) * Math.exp(-event.deltaY * WHEEL_SPEED[event.deltaMode]), event.clientX, event.clientY);
  }, { passive: false });
  picture.addEventListener("dblclick", (event) => {
    if (scale === null) zoomTo(2, event.clientX, event.clientY);
    else setScale(0);
  });

  // Fingers: one moves the image (the browser scrolls), two zoom. The mouse drags.
  let pinch = null;
  const measure = ([one, other]) => ({
    x: (one.clientX + other.clientX) / 2, y: (one.clientY + other.clientY) / 2,
    distance: Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY),
  });
  picture.addEventListener("touchstart", (event) => {
    pinch = image && event.touches.length === 2 ? measure(event.touches) : null;
    if (pinch) event.preventDefault();
  }, { passive: false });
  picture.addEventListener("touchmove", (event) => {
    if (!pinch || event.touches.length !== 2) return;
    event.preventDefault();
    const now = measure(event.touches);
    picture.scrollBy({ left: pinch.x - now.x, top: pinch.y - now.y, behavior: "instant" });
    setScale((scale ?? fitScale()) * (now.distance / pinch.distance), now.x, now.y);
    pinch = now;
  }, { passive: false });
  let dragged = null;
  picture.addEventListener("pointerdown", (event) => {
    if (event.pointerType !== "mouse" || event.button !== 0 || scale === null) return;
    dragged = { x: event.clientX, y: event.clientY };
    picture.setPointerCapture(event.pointerId);
    picture.classList.add("dragged");
  });
  picture.addEventListener("pointermove", (event) => {
    if (!dragged) return;
    picture.scrollBy({ left: dragged.x - event.clientX, top: dragged.y - event.clientY, behavior: "instant" });
    dragged = { x: event.clientX, y: event.clientY };
  });
  for (const kind of ["pointerup", "pointercancel"]) {
    picture.addEventListener(kind, () => { dragged = null; picture.classList.remove("dragged"); });
  }
  for (const button of buttons) button.addEventListener("click", () => zoomTo(Number(button.dataset.zoom)));
  new ResizeObserver(layOut).observe(picture);

  // --- Display ---

  function resetWindow() {
    width.value = width.max;
    level.value = (Number(level.min) + Number(level.max)) / 2;
  }

  function adjust() {
    root.classList.toggle("exact", exact.checked);
    outline.hidden = !showSeen.checked || !display?.crop;
    const isDeep = display?.bits === 16;
    if (image) image.style.filter = isDeep ? "" : `brightness(${brightness.value}) contrast(${contrast.value})`;
    for (const slider of sliders) {
      const isShare = slider === brightness || slider === contrast;
      slider.nextElementSibling.textContent = isShare ? `${Math.round(100 * slider.value)} %` : countOf(Math.round(slider.value));
    }
    const isChanged = isDeep ? width.value !== width.max : brightness.value !== "1" || contrast.value !== "1";
    find("adjust-text").textContent = isChanged ? "Adjusted" : "Adjust";
    layOut();
  }

  // The server renders 16-bit images; while it does, only the latest window waits.
  let isRendering = false, renderAgain = false;
  async function renderWindow() {
    renderAgain = isRendering;
    if (isRendering || display?.bits !== 16) return;
    isRendering = true;
    const shown = image, half = Number(width.value) / 2, center = Number(level.value);
    const [low, high] = [center - half, center + half].map((value) => Math.min(65535, Math.max(0, Math.round(value))));
    const next = Object.assign(new Image(), { alt: image.alt, draggable: false, src: `${address}?low=${low}&high=${high}` });
    await next.decode().catch(() => {}); // the last window stays
    if (image === shown && next.naturalWidth) {
      image.replaceWith(next);
      image = next;
      layOut();
    }
    isRendering = false;
    if (renderAgain) renderWindow();
  }

  function reset() {
    [brightness.value, contrast.value] = [1, 1];
    resetWindow();
    adjust();
    renderWindow();
  }

  function toggleAdjust() {
    const panel = find("adjust");
    panel.hidden = !panel.hidden;
    find("show-adjust").setAttribute("aria-expanded", String(!panel.hidden));
  }

  function toggle(box) {
    if (box.closest("label").hidden) return;
    box.checked = !box.checked;
    adjust();
  }

  for (const slider of [width, level]) slider.addEventListener("input", renderWindow);
  for (const control of [...sliders, exact, showSeen]) control.addEventListener("input", adjust);
  find("show-adjust").addEventListener("click", toggleAdjust);
  find("reset-display").addEventListener("click", reset);

  return {
    show, clear, zoomIn: () => step(1), zoomOut: () => step(-1), fit: () => image && setScale(0), toggleAdjust,
    toggleExact: () => toggle(exact), toggleOutline: () => toggle(showSeen),
    pan: (x, y) => picture.scrollBy(x, y), isZoomed: () => scale !== null,
  };
}
