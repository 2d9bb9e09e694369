// What a job is, seen from the page, and the geometry of a picture in a clip.

import { moment } from "./dom.js";

export const TERMINAL = ["succeeded", "failed", "cancelled", "dead"];
export const LIVE = ["queued", "running", "cancelling"];
export const STATES = [...LIVE, ...TERMINAL];
export const isTerminal = (job) => TERMINAL.includes(job.status);
export const canRetry = (job) => ["failed", "cancelled", "dead"].includes(job.status);

const STATE_WORDS = { queued: "waiting", running: "rendering", cancelling: "stopping",
  succeeded: "done", failed: "failed", cancelled: "cancelled", dead: "gave up" };
export const stateWord = (status) => STATE_WORDS[status] ?? status;

const STAGES = { load: "loading", encode: "reading picture", prepare: "preparing",
  denoise: "imagining motion", decode: "drawing frames", write: "writing files" };
export const stageWord = (stage) => STAGES[stage] ?? stage;

export const findArtifact = (job, test) => (job.artifacts ?? []).find(test);
export const clipOf = (job) => findArtifact(job, (a) => a.media_type?.startsWith("video/"));
export const posterOf = (job) => findArtifact(job, (a) => isImage(a) && /thumb|poster/.test(a.name))
  ?? findArtifact(job, (a) => isImage(a) && !/sheet|sprite/.test(a.name));
const isImage = (artifact) => artifact.media_type?.startsWith("image/");

/** Where the input picture of a job can be read (needs the key). */
export const inputPath = (job) =>
  job.request?.image ? `/v1/files/${encodeURIComponent(job.request.image)}/content` : null;

/** Seconds a job has run, still running ones up to now. */
export function elapsed(job) {
  const start = moment(job.started_at);
  if (!start) return null;
  return ((moment(job.finished_at) ?? new Date()) - start) / 1000;
}

/** What to do next about an error, in one sentence. */
export function nextStep(job) {
  const code = job.error?.code ?? "";
  if (job.status === "dead") return "The worker was lost each time this job ran. Look at the log of the video worker, then retry.";
  if (/memory|oom/i.test(code)) return "Choose a smaller size or fewer seconds, then duplicate the job.";
  if (/image|picture/i.test(code)) return "Choose another picture and submit again.";
  if (/invalid|unsupported|limit/i.test(code)) return "Duplicate the job and change the named setting.";
  return "Retry it. If it fails the same way again, the worker's log tells more.";
}

// ---------------------------------------------------------------- sizes

/** Limits used until the model has told its own. */
export const FALLBACK_LIMITS = { min_side: 64, max_side: 2048, side_multiple: 2, max_area: 2073600,
  default_area: 262144, default_fps: 16, min_fps: 1, max_fps: 60, default_seconds: 2,
  min_frames: 2, max_frames: 161, default_steps: 12, min_steps: 1, max_steps: 100,
  max_prompt_chars: 2000, has_negative_prompt: false };

/** The legal size with the proportions `ratio` and about `area` pixels; the service's own rule. */
export function sizeFor(ratio, area, limits) {
  const step = sideStep(limits);
  const [lowest, highest] = [Math.ceil(limits.min_side / step), Math.floor(limits.max_side / step)];
  const legal = (side) => step * Math.min(Math.max(Math.round(side / step), lowest), highest);
  const size = { width: legal(Math.sqrt(area * ratio)), height: legal(Math.sqrt(area / ratio)) };
  while (size.width * size.height > limits.max_area) size[size.width >= size.height ? "width" : "height"] -= step;
  return size;
}

/** Sides are a multiple of this: of the model's step, and even. */
export const sideStep = (limits) => (limits.side_multiple % 2 ? limits.side_multiple * 2 : limits.side_multiple);

/** Choices for the size menu. `picture` may be null. */
export function sizePresets(picture, limits) {
  const area = limits.default_area;
  const shapes = [["Wide 16:9", 16 / 9], ["Square 1:1", 1], ["Tall 9:16", 9 / 16], ["Classic 4:3", 4 / 3]];
  const presets = shapes.map(([name, ratio]) => ({ name, ...sizeFor(ratio, area, limits) }));
  const ratio = picture ? picture.width / picture.height : 4 / 3;
  presets.unshift({ name: "As the picture", ...sizeFor(ratio, area, limits), followsPicture: true });
  const large = Math.min(limits.max_area, area * 4);
  if (large > area * 1.5) presets.push({ name: "Large 16:9", ...sizeFor(16 / 9, large, limits) });
  return presets;
}

/**
 * How the engine fits a picture: `crop` covers the clip and cuts equally from both sides;
 * `pad` shows all of it, centred, with bars. Units: pixels of the picture, `scale` = clip / picture.
 */
export function fitBox(picture, size, fit) {
  const ratios = [size.width / picture.width, size.height / picture.height];
  const scale = fit === "pad" ? Math.min(...ratios) : Math.max(...ratios);
  const [width, height] = [size.width / scale, size.height / scale];
  return { x: (picture.width - width) / 2, y: (picture.height - height) / 2, width, height, scale };
}

/** What the crop does, in words. */
export function fitWords(picture, size, fit) {
  const box = fitBox(picture, size, fit);
  const lost = 1 - (Math.min(box.width, picture.width) * Math.min(box.height, picture.height))
    / (picture.width * picture.height);
  if (fit === "crop") return lost < 0.005 ? "whole picture" : `cuts ${Math.round(lost * 100)} %`;
  const bars = 1 - (picture.width * picture.height) / (box.width * box.height);
  return bars < 0.005 ? "whole picture" : `${Math.round(bars * 100)} % bars`;
}

export const randomSeed = () => crypto.getRandomValues(new Uint32Array(1))[0] & 0x7fffffff;
