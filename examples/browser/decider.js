// A decider: an ONNX file written by `secondlook export`, run by ONNX Runtime Web in a separate worker.

import { isIntact, readMetadata } from "./metadata.js";

const RUNTIME = "./node_modules/onnxruntime-web/dist/ort.wasm.min.mjs";
const KNOWN_VERSION = 1;
const TYPE_NUMBERS = { uint8: 2, float32: 1 };

/** A file that is not a decider, or that cannot be run. */
export class DeciderError extends Error {}

/** Starts ONNX Runtime Web. */
export async function startRuntime() {
  const ort = await import(RUNTIME).catch(() => {
    throw new DeciderError("ONNX Runtime Web is missing; run “npm install” in the folder of this page, and reload it.");
  });
  ort.env.wasm.proxy = true; // a worker keeps the page responsive
  if (!self.crossOriginIsolated) ort.env.wasm.numThreads = 1; // only isolated pages may share memory among threads
  return ort;
}

export class Decider {
  /** Loads a decider from the bytes of its file. */
  static async load(ort, bytes, name) {
    const metadata = readMetadata(bytes);
    if (!metadata?.has("secondlook.policy") || !metadata.has("secondlook.export")) {
      throw new DeciderError(`“${name}” is not an exported file: it contains no policy; write one with “secondlook export”.`);
    }
    if (!globalThis.crypto?.subtle) {
      throw new DeciderError("The browser cannot check the file at this address; open the page on “localhost”, or over HTTPS.");
    }
    if (!await isIntact(bytes)) {
      throw new DeciderError(`“${name}” is damaged or was changed after the export (wrong checksum); export it again.`);
    }
    const record = JSON.parse(metadata.get("secondlook.export"));
    if (record.version !== KNOWN_VERSION) {
      throw new DeciderError(`“${name}” was written by another version of secondlook (${record.secondlook}); export it again.`);
    }
    const size = bytes.length;
    const model = record.adaptive ? bytes : withViews(bytes, TYPE_NUMBERS[record.pixels]);
    const session = await ort.InferenceSession.create(model).catch((error) => {
      throw new DeciderError(`ONNX Runtime Web cannot run “${name}”: ${error.message}.`);
    });
    return new Decider(ort, session, JSON.parse(metadata.get("secondlook.policy")), record, { name, size });
  }

  constructor(ort, session, policy, record, file) {
    Object.assign(this, { ort, session, policy, record, file });
  }

  /** Decides about a picture (see pictures.js). */
  async decide({ pixels, width, height, channels }) {
    const isFloat = this.record.pixels === "float32";
    const values = isFloat ? Float32Array.from(pixels, (value) => value / 255) : pixels;
    const images = new this.ort.Tensor(this.record.pixels, values, [1, height, width, channels]);
    const start = performance.now();
    const outputs = await this.session.run({ images });
    const milliseconds = performance.now() - start;
    const label = Number(outputs.label.data[0]);
    return {
      label,
      labels: outputs.labels ? Array.from(outputs.labels.data, Number) : [label],
      confidence: outputs.confidence.data[0],
      accept: Boolean(outputs.accept.data[0]),
      rejection: this.explainRejection(outputs),
      threshold: this.findThreshold(label),
      probabilities: outputs.probabilities.data,
      looks: Number(outputs.looks.data[0]),
      views: this.readViews(outputs.view_outputs),
      viewPixels: outputs.views ?? null, // an adaptive file computes its views in a loop, which keeps them
      milliseconds,
    };
  }

  release() {
    return this.session.release();
  }

  nameClass(label) {
    return this.policy.class_names?.[label] ?? `class ${label}`;
  }

  /** Returns the threshold of a predicted class; null if none is certified. */
  findThreshold(label) {
    return this.policy.groups.length ? this.policy.groups[label].threshold : this.policy.threshold;
  }

  /** Returns the reason of a rejection as one word; "" if the picture is accepted or the reason is unknown. */
  explainRejection({ accept, familiarity }) {
    if (accept.data[0] || !familiarity) return "";
    return familiarity.data[0] < this.policy.familiarity.limit ? "unfamiliar" : "unsure";
  }

  /** Returns the guarantee in the words of the library; null without a guarantee. */
  describeGuarantee() {
    const { guarantee } = this.policy;
    if (!guarantee || this.record.mismatch) return null;
    const { risk, smallest_risk: smallest, delta } = guarantee;
    const errors = smallest === null ? `${formatShare(risk)} errors` : `its risk (${formatShare(smallest)} to ${formatShare(risk)}) of errors`;
    const where = guarantee.grouped_by === null ? "" : " in every predicted class, jointly";
    return `at most ${errors} among accepted images${where} with ${formatShare(1 - delta)} confidence, for images from the same distribution as the labeled ones`;
  }

  /** Returns the prediction of every look as { text, label, probability }, with null for omitted looks. */
  readViews({ data, dims }) {
    const [, nViews, nOutputs] = dims;
    return Array.from({ length: nViews }, (_, view) => {
      const outputs = data.subarray(view * nOutputs, (view + 1) * nOutputs);
      const text = this.policy.views[view];
      if (Number.isNaN(outputs[0])) return { text, label: null, probability: null };
      const probabilities = this.averageMembers(outputs);
      const label = probabilities.indexOf(Math.max(...probabilities));
      return { text, label, probability: probabilities[label] };
    });
  }

  /** Returns the mean probabilities of the members. [members * classes] -> [classes] */
  averageMembers(outputs) {
    const { members, classes, outputs: kinds } = this.record;
    const mean = new Array(classes).fill(0);
    for (let member = 0; member < members; member++) {
      const own = Array.from(outputs.subarray(member * classes, (member + 1) * classes));
      const probabilities = kinds[member] === "logits" ? softmax(own) : own;
      probabilities.forEach((probability, label) => { mean[label] += probability / members; });
    }
    return mean;
  }
}

/** Returns a model whose views are one more output: protobuf merges a model with a graph that has only this output. */
function withViews(bytes, typeNumber) {
  const name = new TextEncoder().encode("views");
  const type = [0x12, 4, 0x0a, 2, 0x08, typeNumber];
  const output = [0x0a, name.length, ...name, ...type];
  const graph = [0x3a, output.length + 2, 0x62, output.length, ...output];
  const merged = new Uint8Array(bytes.length + graph.length);
  merged.set(bytes);
  merged.set(graph, bytes.length);
  return merged;
}

/** Returns a share of one in per cent, with at most six digits. */
const formatShare = (share) => `${Number((100 * share).toPrecision(6))} %`;

function softmax(logits) {
  const largest = Math.max(...logits);
  const powers = logits.map((logit) => Math.exp(logit - largest));
  const total = powers.reduce((sum, power) => sum + power, 0);
  return powers.map((power) => power / total);
}
