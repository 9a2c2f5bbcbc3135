// Pictures: from a file to the input of a decider.

const MOST_PIXELS = 2 ** 22; // larger pictures are scaled down if the decider accepts any size

/** A file that is not a picture, or cannot be decoded. */
export class PictureError extends Error {}

/**
 * Decodes a file and returns { bitmap, pixels, width, height, channels, note }: pixels are uint8 [height, width, channels].
 *
 * imageShape is [height, width, channels] of the decider, with null for dynamic sizes; note describes changes of the
 * pixels.
 */
export async function readPicture(file, imageShape) {
  const original = await decode(file);
  const [height, width, channels] = imageShape;
  const bitmap = await (height && width ? cropAndScale(original, width, height) : bound(original));
  const rgba = readPixels(bitmap);
  return {
    bitmap,
    pixels: channels === 1 ? convertToGray(rgba) : dropAlpha(rgba),
    width: bitmap.width,
    height: bitmap.height,
    channels: channels ?? 3,
    note: describeChange(original, bitmap),
  };
}

async function decode(file) {
  try {
    // Orientation is applied and color profiles are ignored, as in secondlook.
    return await createImageBitmap(file, { imageOrientation: "from-image", colorSpaceConversion: "none" });
  } catch {
    throw new PictureError(`“${file.name}” cannot be read by this browser; choose a JPEG, PNG or WebP file.`);
  }
}

/** Crops the largest center with the aspect ratio of a size, and scales it to that size. */
async function cropAndScale(bitmap, width, height) {
  if (bitmap.width === width && bitmap.height === height) return bitmap;
  const scale = Math.min(bitmap.width / width, bitmap.height / height);
  const [croppedWidth, croppedHeight] = [width, height].map((side) => Math.max(1, Math.round(side * scale)));
  const left = Math.round((bitmap.width - croppedWidth) / 2), top = Math.round((bitmap.height - croppedHeight) / 2);
  const size = { resizeWidth: width, resizeHeight: height, resizeQuality: "high" };
  return createImageBitmap(bitmap, left, top, croppedWidth, croppedHeight, size);
}

async function bound(bitmap) {
  const scale = Math.sqrt(MOST_PIXELS / (bitmap.width * bitmap.height));
  if (scale >= 1) return bitmap;
  const [resizeWidth, resizeHeight] = [bitmap.width, bitmap.height].map((side) => Math.max(1, Math.floor(side * scale)));
  return createImageBitmap(bitmap, { resizeWidth, resizeHeight, resizeQuality: "high" });
}

function readPixels(bitmap) {
  const canvas = new OffscreenCanvas(bitmap.width, bitmap.height);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(bitmap, 0, 0);
  return context.getImageData(0, 0, bitmap.width, bitmap.height).data;
}

function dropAlpha(rgba) {
  const pixels = new Uint8Array((rgba.length / 4) * 3);
  for (let from = 0, to = 0; from < rgba.length; from += 4) {
    pixels[to++] = rgba[from];
    pixels[to++] = rgba[from + 1];
    pixels[to++] = rgba[from + 2];
  }
  return pixels;
}

/** Returns the luminance, rounded as in Pillow. */
function convertToGray(rgba) {
  const pixels = new Uint8Array(rgba.length / 4);
  for (let from = 0, to = 0; from < rgba.length; from += 4) {
    pixels[to++] = (19595 * rgba[from] + 38470 * rgba[from + 1] + 7471 * rgba[from + 2] + 32768) >> 16;
  }
  return pixels;
}

/** Returns one picture of a tensor [pictures, height, width, channels], uint8 or float32 in [0, 1], to be drawn. */
export function toImageData({ data, dims: [, height, width, channels] }, number) {
  const image = new ImageData(width, height);
  const pixels = data.subarray(number * height * width * channels);
  const scale = data instanceof Float32Array ? 255 : 1;
  image.data.forEach((_, place) => {
    const [pixel, channel] = [Math.floor(place / 4), place % 4];
    image.data[place] = channel === 3 ? 255 : scale * pixels[pixel * channels + (channels === 3 ? channel : 0)];
  });
  return image;
}

const formatSize = ({ width, height }) => `${width} × ${height}`;

function describeChange(original, bitmap) {
  if (bitmap === original) return null;
  const isCropped = Math.abs(original.width * bitmap.height - original.height * bitmap.width) >= Math.max(original.width, original.height);
  const change = isCropped ? "cropped to the center and scaled" : "scaled";
  return `This browser ${change} it from ${formatSize(original)} to ${formatSize(bitmap)} pixels. The guarantee is for pictures like those of the calibration.`;
}
