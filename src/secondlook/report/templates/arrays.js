// Packed arrays of the page, searches in sorted arrays, and number formats.
const ARRAY_TYPES = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, f4: Float32Array, f8: Float64Array };

function unpackArray({ type, data }) {
  const text = atob(data);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return new ARRAY_TYPES[type](bytes.buffer);
}

function unpackArrays(record) {
  return Object.fromEntries(Object.entries(record).map(([name, value]) => [name, unpackArray(value)]));
}

function cumulativeSum(counts) {
  const sums = new Float64Array(counts.length);
  let total = 0;
  for (let i = 0; i < counts.length; i++) sums[i] = total += counts[i];
  return sums;
}

// The first index in an ascending array whose value is at least `target`.
function firstAtLeast(ascending, target) {
  let low = 0;
  let high = ascending.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ascending[middle] < target) low = middle + 1;
    else high = middle;
  }
  return low;
}

function nearestIndex(ascending, target) {
  const index = Math.min(firstAtLeast(ascending, target), ascending.length - 1);
  return index > 0 && target - ascending[index - 1] < ascending[index] - target ? index - 1 : index;
}

const formatCount = new Intl.NumberFormat("en-US").format;

// Percent with at most this many decimals and a non-breaking space.
function formatPercent(fraction, decimals = 2) {
  return `${Number((100 * fraction).toFixed(decimals))}\u00a0%`;
}

// A number with at least this many decimals, and three significant digits.
function formatDigits(value, decimals) {
  const exponent = value ? Math.floor(Math.log10(Math.abs(value))) : 0;
  return value.toFixed(Math.max(decimals, 2 - exponent));
}

// A confidence for display; values below 1 never appear as 1.
function formatConfidence(value) {
  return value > 0.9999 && value < 1 ? ">0.9999" : value.toFixed(4);
}
