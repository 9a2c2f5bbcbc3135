// Numbers as the page carries them: packed arrays, unpacked once.
const PACKED = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, f4: Float32Array, f8: Float64Array };

function unpacked({ type, data }) {
  const text = atob(data);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return new PACKED[type](bytes.buffer);
}

function unpackedAll(record) {
  return Object.fromEntries(Object.entries(record).map(([name, value]) => [name, unpacked(value)]));
}

function runningSum(counts) {
  const sums = new Float64Array(counts.length);
  let total = 0;
  for (let i = 0; i < counts.length; i++) sums[i] = total += counts[i];
  return sums;
}

// The first place in a rising array whose value is at least `wanted`.
function firstAtLeast(rising, wanted) {
  let low = 0;
  let high = rising.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (rising[middle] < wanted) low = middle + 1;
    else high = middle;
  }
  return low;
}

function nearestPlace(rising, wanted) {
  const place = Math.min(firstAtLeast(rising, wanted), rising.length - 1);
  return place > 0 && wanted - rising[place - 1] < rising[place] - wanted ? place - 1 : place;
}

const asCount = new Intl.NumberFormat("en-GB").format;

// Per cent with at most so many decimals; the space does not break.
function asPercent(share, decimals = 2) {
  return `${Number((100 * share).toFixed(decimals))}\u00a0%`;
}

// A confidence to look at, not to copy; what is not 1 is not written as 1.
function asConfidence(value) {
  return value > 0.9999 && value < 1 ? ">0.9999" : value.toFixed(4);
}
