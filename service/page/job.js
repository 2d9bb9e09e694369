// One job: player, input beside output, parameters, files, error.

import { api } from "./api.js";
import { bytes, clock, confirm, copy, fill, h, toast, when } from "./dom.js";
import { fileName, progressCell } from "./jobs.js";
import { canRetry, clipOf, elapsed, inputPath, isTerminal, nextStep, posterOf, stateWord } from "./model.js";
import { inputPicture } from "./pictures.js";
import { curlText, pythonText } from "./recipes.js";

export class JobView {
  constructor({ onDuplicate, onGone }) {
    this.onDuplicate = onDuplicate;
    this.onGone = onGone;
    this.element = h("section", { class: "detail", "aria-label": "Job" });
    setInterval(() => this.tick(), 1000);
  }

  async show(id) {
    this.stop();
    this.controller = new AbortController();
    const { signal } = this.controller;
    this.id = id;
    this.shown = "";
    fill(this.element, h("p", { class: "hint" }, "Loading …"));
    try {
      this.render(await api("GET", `/jobs/${id}`, undefined, { signal }));
    } catch (error) {
      if (!signal.aborted) fill(this.element, backLink(), h("p", { class: "problem" }, error.message));
    }
  }

  /** Reads the job again, after changes may have been missed. */
  async refresh() {
    const id = this.id;
    if (!id || !this.job || isTerminal(this.job)) return;
    try {
      this.update(await api("GET", `/jobs/${id}`));
    } catch (error) {
      if (error.status === 404) fill(this.element, backLink(), h("p", { class: "problem" }, error.message));
    }
  }

  stop() { this.controller?.abort(); this.id = null; this.job = null; }

  update(job) { if (job.id === this.id) this.render(job); }

  /** Draws the job again; the parts that did not change (the player above all) stay. */
  render(job) {
    if (job.id !== this.id) return;
    this.job = job;
    const now = `${job.id} ${job.status} ${job.attempt} ${job.artifacts.length}`;
    if (now !== this.shown) {
      this.shown = now;
      this.progress = h("div", { class: "wide-progress" });
      fill(this.element, backLink(), this.head(job), this.problem(job), this.media(job), this.progress, this.facts(job), this.files(job));
    }
    fill(this.progress, isTerminal(job) ? null : progressCell(job));
  }

  tick() {
    if (this.element.isConnected && this.job?.status === "running") {
      this.element.querySelector(".elapsed")?.replaceChildren(clock(elapsed(this.job)));
    }
  }

  head(job) {
    const its = job;
    const trail = [its.project, its.shot, ...its.tags.map((t) => `#${t}`)].filter(Boolean).join("  ·  ");
    const act = (text, action, kind = "") => h("button", { type: "button", class: kind, onclick: action }, text);
    const clip = clipOf(job);
    return h("header", { class: "detail-head" },
      h("div", { class: "row" }, h("span", { class: `chip-state ${job.status}` }, stateWord(job.status)), h("span", { class: "dim" }, trail), job.batch_id && h("a", { href: `#/video/batch/${job.batch_id}` }, "batch")),
      h("h1", {}, job.request.prompt),
      h("div", { class: "row actions" },
        clip?.url && h("a", { class: "button primary", href: clip.url, download: fileName(job) }, "Save clip"),
        act("Duplicate", () => this.onDuplicate(job)),
        act("Copy as curl", () => copy(curlText(job), "curl command")), act("Copy as Python", () => copy(pythonText(job), "Python code")),
        !isTerminal(job) && act("Cancel", () => this.act("cancel")), canRetry(job) && act("Retry", () => this.act("retry")),
        act("Delete", () => this.remove(), "danger")));
  }

  problem(job) {
    if (!job.error) return null;
    return h("div", { class: "problem-card", role: "alert" }, h("strong", {}, job.error.message), h("p", {}, nextStep(job)), h("code", {}, job.error.code));
  }

  media(job) {
    const clip = clipOf(job);
    const input = inputPicture(job, "input");
    input.style.aspectRatio = `${job.request.width} / ${job.request.height}`;
    input.style.objectFit = job.request.fit === "crop" ? "cover" : "contain";
    const before = h("figure", {}, inputPath(job) ? input : null, h("figcaption", {}, `Input  ${job.request.image_name ?? ""}`));
    if (!clip?.url) return h("div", { class: "sides single" }, before);
    const frame = h("output", { class: "dim" });
    const video = h("video", { src: clip.url, poster: posterOf(job)?.url, controls: true, loop: true, autoplay: true, muted: true, playsinline: true, tabindex: 0, "aria-label": "The clip",
      onkeydown: (e) => stepFrame(e, video, job.request.fps), ontimeupdate: () => fill(frame, frameText(video, job.request.fps)) });
    this.video = video;
    const step = (key, text, label) => h("button", { type: "button", class: "quiet", "aria-label": label, title: `${label} (${key})`, onclick: () => moveFrame(video, job.request.fps, key === "," ? -1 : 1) }, text);
    const after = h("figure", {}, video, h("figcaption", { class: "row" }, "Clip", step(",", "◂", "One frame back"), step(".", "▸", "One frame on"), frame));
    return h("div", { class: "sides" }, before, after);
  }

  facts(job) {
    const [r, its] = [job.request, job];
    const rows = [["Model", r.model], ["Size", `${r.width} × ${r.height}, ${r.fit}`], ["Length", `${r.seconds} s at ${r.fps} fps`], ["Seed", r.seed], ["Steps", r.steps], ["Guidance", r.guidance_scale], ["Avoid", r.negative_prompt],
      ["Priority", its.priority], ["Attempt", job.attempt], ["Submitted", when(job.created_at)], ["Started", when(job.started_at)], ["Took", job.finished_at ? clock(elapsed(job)) : null], ["Job", job.id]];
    const wide = (name) => ["Job", "Avoid"].includes(name) && "wide";
    const shown = rows.filter(([, value]) => value !== null && value !== undefined && value !== "");
    return h("section", {}, h("h2", {}, "Parameters"), h("dl", { class: "facts-grid" }, shown.map(([name, value]) => h("div", { class: wide(name) }, h("dt", {}, name), h("dd", {}, String(value))))));
  }

  files(job) {
    if (!job.artifacts.length) return null;
    const row = (a) => h("tr", {}, h("td", {}, a.url ? h("a", { href: a.url, download: a.name }, a.name) : a.name), h("td", {}, a.media_type), h("td", { class: "right" }, bytes(a.bytes)),
      h("td", {}, h("button", { type: "button", class: "link mono", title: `sha256 ${a.sha256}, copies`, onclick: () => copy(a.sha256, "hash") }, a.sha256.slice(0, 12))));
    return h("section", {}, h("h2", {}, "Files"), h("table", { class: "files" }, h("thead", {}, h("tr", {}, ["Name", "Type", "Size", "SHA-256"].map((t) => h("th", { scope: "col" }, t)))), h("tbody", {}, job.artifacts.map(row))));
  }

  async act(verb) {
    try {
      const id = this.id;
      this.render(await api("POST", `/jobs/${id}/${verb}`));
      toast(verb === "cancel" ? "Cancelled." : "Queued again.", "good");
      if (verb === "retry") this.show(id);
    } catch (error) {
      toast(error.message, "bad");
    }
  }

  async remove() {
    const id = this.id;
    if (!(await confirm("Delete this job", "The job and all its files will be deleted. This cannot be undone.", "Delete"))) return;
    try {
      await api("DELETE", `/jobs/${id}`);
      toast("Deleted.", "good");
      this.onGone();
    } catch (error) {
      toast(error.message, "bad");
    }
  }
}

const backLink = () => h("button", { type: "button", class: "link back", onclick: () => history.back() }, "← Back to the list");

function frameText(video, fps) {
  const count = Math.max(1, Math.round((video.duration || 0) * fps));
  return `frame ${Math.min(Math.floor(video.currentTime * fps + 0.01) + 1, count)} of ${count}`;
}

export function moveFrame(video, fps, by) {
  video.pause();
  const frame = Math.floor(video.currentTime * fps + 0.01) + by;
  video.currentTime = Math.min(Math.max((frame + 0.5) / fps, 0), video.duration || 0);
}

function stepFrame(event, video, fps) {
  if (event.key === "," || event.key === ".") { event.preventDefault(); event.stopPropagation(); moveFrame(video, fps, event.key === "," ? -1 : 1); }
}
