// Where the threshold stands: the same counting as in Python, from the same numbers.
const ROUNDING = 1e-12;
const NOTHING = { threshold: Infinity, below: 0, accepted: 0, errors: 0 };

function prepared(method, place) {
  const accepted = runningSum(unpacked(method.sizes));
  return {
    ...method,
    place,
    thresholds: unpacked(method.thresholds),
    accepted,
    errors: runningSum(unpacked(method.wrong)),
    curve: unpackedAll(method.curve),
    histogram: unpackedAll(method.histogram),
    reliability: method.reliability && unpackedAll(method.reliability),
    guarantees: method.guarantees && unpackedAll(method.guarantees),
  };
}

// `below` is the next lower confidence, so that a short decimal between the two decides the same.
function pointOf(method, block) {
  const threshold = method.thresholds[block];
  const below = method.complete ? (method.thresholds[block + 1] ?? -Infinity) : threshold;
  return { threshold, below, accepted: method.accepted[block], errors: method.errors[block] };
}

// The shortest decimal that accepts exactly what the threshold accepts here.
function asThreshold({ threshold, below }) {
  if (threshold === Infinity) return "nothing";
  for (let decimals = 1; decimals <= 16; decimals++) {
    const text = (Math.floor(threshold * 10 ** decimals) / 10 ** decimals).toFixed(decimals);
    if (below < Number(text) && Number(text) <= threshold) return text;
  }
  return String(threshold);
}

// The most that is accepted while at most `risk` of it is wrong.
function pointAtRisk(method, risk) {
  for (let block = method.accepted.length - 1; block >= 0; block--) {
    if (method.errors[block] <= risk * (1 + ROUNDING) * method.accepted[block]) return pointOf(method, block);
  }
  return NOTHING;
}

// The fewest that reach this coverage; equal confidences go together.
function pointAtCoverage(method, coverage, images) {
  const wanted = Math.max(1, Math.min(images, Math.ceil(coverage * images * (1 - ROUNDING))));
  return pointOf(method, firstAtLeast(method.accepted, wanted));
}

function guaranteeAt(method, place) {
  if (!method.guarantees || method.guarantees.accepted[place] === 0) return null;
  const { thresholds, accepted, errors } = method.guarantees;
  const below = method.complete ? (method.thresholds[firstAtLeast(method.accepted, accepted[place]) + 1] ?? -Infinity) : thresholds[place];
  return { threshold: thresholds[place], below, accepted: accepted[place], errors: errors[place] };
}

// The error rate among the n surest images, expected over the order of equal confidences.
function riskAmong(method, n) {
  const block = firstAtLeast(method.accepted, n);
  const [before, errorsBefore] = block ? [method.accepted[block - 1], method.errors[block - 1]] : [0, 0];
  const share = (n - before) / (method.accepted[block] - before);
  return (errorsBefore + share * (method.errors[block] - errorsBefore)) / n;
}
