// Pictures: taking one in, drawing its crop, and showing protected ones.

import { objectUrl } from "./api.js";
import { h } from "./dom.js";
import { fitBox, inputPath, posterOf } from "./model.js";

/** Reads a file into {file, bitmap, width, height}; throws with words for the person. */
export async function readPicture(file) {
  if (!file.type.startsWith("image/")) throw new Error(`"${file.name}" is not a picture. PNG, JPEG and WebP work.`);
  try {
    const bitmap = await createImageBitmap(file, { imageOrientation: "from-image" });
    return { file, bitmap, width: bitmap.width, height: bitmap.height };
  } catch {
    throw new Error(`"${file.name}" cannot be read as a picture. Save it as PNG or JPEG and try again.`);
  }
}

/** The first picture of a drop or a paste, or null. */
export function pictureFile(transfer) {
  return [...(transfer?.files ?? [])].find((file) => file.type.startsWith("image/")) ?? null;
}

/** Draws what the clip will see: the crop box on the picture, or the picture between bars. */
export function drawFit(canvas, picture, size, fit) {
  const ratio = window.devicePixelRatio || 1;
  const box = fitBox(picture, size, fit);
  const whole = fit === "pad" ? box : { x: 0, y: 0, width: picture.width, height: picture.height };
  const room = { width: canvas.parentElement.clientWidth, height: 250 };
  const zoom = Math.min(room.width / whole.width, room.height / whole.height);
  canvas.width = Math.max(1, Math.round(whole.width * zoom * ratio));
  canvas.height = Math.max(1, Math.round(whole.height * zoom * ratio));
  canvas.style.width = `${canvas.width / ratio}px`;
  canvas.style.height = `${canvas.height / ratio}px`;
  const pen = canvas.getContext("2d");
  const k = zoom * ratio;
  pen.fillStyle = "#000";
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.drawImage(picture.bitmap, -whole.x * k, -whole.y * k, picture.width * k, picture.height * k);
  if (fit === "crop") shadeOutside(pen, canvas, { x: box.x * k, y: box.y * k, width: box.width * k, height: box.height * k }, ratio);
}

function shadeOutside(pen, canvas, box, ratio) {
  if (box.x < 1 && box.y < 1) return;
  pen.fillStyle = "rgba(10, 14, 13, 0.62)";
  pen.beginPath();
  pen.rect(0, 0, canvas.width, canvas.height);
  pen.rect(box.x, box.y, box.width, box.height);
  pen.fill("evenodd");
  pen.strokeStyle = "#fff";
  pen.lineWidth = 1.5 * ratio;
  pen.strokeRect(box.x + ratio, box.y + ratio, box.width - 2 * ratio, box.height - 2 * ratio);
}

// ---------------------------------------------------------------- thumbnails

const inputs = new Map();
const MOST_INPUTS = 200;

function inputUrl(path) {
  if (!inputs.has(path)) {
    inputs.set(path, objectUrl(path));
    if (inputs.size > MOST_INPUTS) {
      const [oldest, url] = inputs.entries().next().value;
      inputs.delete(oldest);
      url.then(URL.revokeObjectURL, () => null);
    }
  }
  return inputs.get(path);
}

const seen = new IntersectionObserver((entries) => {
  for (const entry of entries.filter((e) => e.isIntersecting)) {
    seen.unobserve(entry.target);
    loadInput(entry.target, entry.target.dataset.input);
  }
}, { rootMargin: "200px" });

async function loadInput(image, path) {
  try {
    image.src = await inputUrl(path);
  } catch {
    inputs.delete(path);
    image.classList.add("missing");
  }
}

/** A small picture of a job: its poster when done, else its input; loaded when it scrolls in. */
export function thumbnail(job, className = "thumb") {
  const poster = posterOf(job);
  if (poster?.url) return h("img", { class: className, src: poster.url, alt: "", loading: "lazy", decoding: "async" });
  return inputPicture(job, className);
}

/** The picture that a job started from. */
export function inputPicture(job, className) {
  const image = h("img", { class: className, alt: "" });
  const path = inputPath(job);
  if (path) { image.dataset.input = path; seen.observe(image); } else image.classList.add("missing");
  return image;
}
