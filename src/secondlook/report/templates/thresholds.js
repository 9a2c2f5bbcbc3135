// Operating points, computed from the same numbers and in the same way as in Python.
const ROUNDING = 1e-12;
const NOTHING_ACCEPTED = { threshold: Infinity, below: 0, accepted: 0, errors: 0 };

// The operating point of a policy with several thresholds or adaptive looking, which no single threshold gives.
function preparePolicy(policy) {
  return policy && { ...policy, threshold: -Infinity, cells: unpackArray(policy.cells) };
}

function prepareMethod(method, index) {
  return {
    ...method,
    index,
    thresholds: unpackArray(method.thresholds),
    accepted: cumulativeSum(unpackArray(method.sizes)),
    errors: cumulativeSum(unpackArray(method.wrong)),
    unknown: method.unknown && unpackArray(method.unknown),
    cells: method.cells && unpackArray(method.cells),
    class_aurocs: unpackArray(method.class_aurocs),
    curve: unpackArrays(method.curve),
    histogram: unpackArrays(method.histogram),
    reliability: method.reliability && unpackArrays(method.reliability),
    certified: method.certified && unpackArrays(method.certified),
  };
}

// `below` is the next lower confidence: any decimal between the two accepts the same images.
function pointOfBlock(method, block) {
  const threshold = method.thresholds[block];
  const below = method.complete ? (method.thresholds[block + 1] ?? -Infinity) : threshold;
  return { threshold, below, accepted: method.accepted[block], errors: method.errors[block] };
}

// The shortest decimal that accepts exactly the same images as the threshold.
function formatThreshold({ threshold, below }) {
  if (threshold === Infinity) return "none";
  for (let decimals = 1; decimals <= 16; decimals++) {
    const text = (Math.floor(threshold * 10 ** decimals) / 10 ** decimals).toFixed(decimals);
    if (below < Number(text) && Number(text) <= threshold) return text;
  }
  return String(threshold);
}

// The highest coverage at which at most `risk` of the accepted images are wrong.
function pointAtRisk(method, risk) {
  for (let block = method.accepted.length - 1; block >= 0; block--) {
    if (method.errors[block] <= risk * (1 + ROUNDING) * method.accepted[block]) return pointOfBlock(method, block);
  }
  return NOTHING_ACCEPTED;
}

// The cost of all images: of each accepted error and each review.
function totalCost({ accepted, errors }, { error, review }, images) {
  return error * errors + review * (images - accepted);
}

// The point with the least cost; of equal costs, the most confident one.
function pointAtCosts(method, costs, images) {
  let best = NOTHING_ACCEPTED;
  for (let block = 0; block < method.accepted.length; block++) {
    const point = { accepted: method.accepted[block], errors: method.errors[block] };
    if (totalCost(point, costs, images) < totalCost(best, costs, images)) best = pointOfBlock(method, block);
  }
  return best;
}

// The highest threshold that reaches this coverage; equal confidences are accepted together.
function pointAtCoverage(method, coverage, images) {
  const count = Math.max(1, Math.min(images, Math.ceil(coverage * images * (1 - ROUNDING))));
  return pointOfBlock(method, firstAtLeast(method.accepted, count));
}

function certifiedPoint(method, index) {
  if (!method.certified || method.certified.accepted[index] === 0) return null;
  const { thresholds, accepted, errors } = method.certified;
  const next = firstAtLeast(method.accepted, accepted[index]) + 1;
  const below = method.complete ? (method.thresholds[next] ?? -Infinity) : thresholds[index];
  return { threshold: thresholds[index], below, accepted: accepted[index], errors: errors[index] };
}

// Number of accepted unknown images; null for a rank method, whose thresholds do not apply to other images.
function countUnknown(method, { accepted, unknown }) {
  if (unknown !== undefined) return unknown;
  if (!method.unknown) return null;
  return accepted ? method.unknown[firstAtLeast(method.accepted, accepted)] : 0;
}

// The expected error rate among the n most confident images, ties in random order.
function interpolateRisk(method, n) {
  const block = firstAtLeast(method.accepted, n);
  const [before, errorsBefore] = block ? [method.accepted[block - 1], method.errors[block - 1]] : [0, 0];
  const fraction = (n - before) / (method.accepted[block] - before);
  return (errorsBefore + fraction * (method.errors[block] - errorsBefore)) / n;
}
