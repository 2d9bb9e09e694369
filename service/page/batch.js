// Batches: a shot list with its pictures goes in, a grid of clips fills up.

import { api, objectUrl } from "./api.js";
import { fill, h, plural, toast, when } from "./dom.js";
import { clipOf, isTerminal, stateWord } from "./model.js";
import { thumbnail } from "./pictures.js";

const COLUMNS = "shot, image, prompt, seconds, fps, size, seed, project, tags";

/** Where a shot list and its pictures are handed in. */
export class BatchForm {
  constructor({ onCreated }) {
    this.onCreated = onCreated;
    this.files = [];
    this.element = this.build();
  }

  build() {
    this.input = h("input", { type: "file", id: "shots", multiple: true, accept: ".csv,.jsonl,image/*", class: "visually-hidden", onchange: () => this.take([...this.input.files]) });
    this.name = h("input", { id: "batch-name", autocomplete: "off", placeholder: "name of the batch" });
    this.state = h("div", { class: "stage" });
    this.drop = h("div", { class: "drop", ondragover: (e) => { e.preventDefault(); this.drop.classList.add("over"); }, ondragleave: () => this.drop.classList.remove("over"),
      ondrop: (e) => { e.preventDefault(); this.drop.classList.remove("over"); this.take([...e.dataTransfer.files]); } }, this.input, this.state);
    this.result = h("div", { role: "status" });
    this.recent = h("div", {});
    this.buttons = h("div", { class: "row" }, h("button", { type: "button", onclick: () => this.send(true) }, "Check only"), h("button", { type: "submit", class: "primary" }, "Submit the batch"));
    return h("section", { class: "batches", "aria-label": "Batches" },
      h("form", { class: "card form", onsubmit: (e) => { e.preventDefault(); this.send(false); } }, h("h2", {}, "A batch from a shot list"),
        h("p", { class: "hint" }, "A CSV or JSONL file with one shot per line and the pictures it names. Columns: ", h("code", {}, COLUMNS), ". Submitting the same list again renders only what changed or failed."),
        this.drop, h("div", { class: "field" }, h("label", { for: "batch-name" }, "Name"), this.name), this.result, this.buttons), this.recent);
  }

  async show() {
    this.showFiles();
    try {
      const known = (await api("GET", "/batches?limit=50")).data;
      fill(this.recent, known.length > 0 && h("h2", {}, "Batches so far"), h("ul", { class: "plain" }, known.map(batchLine)));
    } catch (error) {
      if (error.status !== 401) fill(this.recent, h("p", { class: "problem" }, error.message));
    }
  }

  take(files) {
    const fresh = new Set(files.map((f) => f.name));
    this.files = [...this.files.filter((f) => !fresh.has(f.name)), ...files];
    const list = this.list();
    if (list && !this.name.value) this.name.value = list.name.replace(/\.\w+$/, "");
    fill(this.result);
    this.showFiles();
  }

  list() { return this.files.find((f) => /\.(csv|jsonl|ndjson)$/i.test(f.name)); }
  pictures() { return this.files.filter((f) => f.type.startsWith("image/")); }

  showFiles() {
    const [list, pictures] = [this.list(), this.pictures()];
    const label = (main, rest) => h("label", { for: "shots", class: "empty", tabindex: 0, role: "button", onkeydown: (e) => { if (e.key === "Enter" || e.key === " ") { e.preventDefault(); this.input.click(); } } }, h("strong", {}, main), h("span", {}, rest));
    if (!this.files.length) { fill(this.state, label("Choose a shot list and its pictures", "or drop them here, all at once")); return; }
    fill(this.state, label(list ? list.name : "The shot list is missing", `${plural(pictures.length, "picture")}. Add more files by choosing or dropping them.`),
      h("div", { class: "row small" }, h("button", { type: "button", class: "link", onclick: () => { this.files = []; this.input.value = ""; this.showFiles(); } }, "Start over")));
  }

  async send(isDry) {
    const list = this.list();
    if (!list) { fill(this.result, h("p", { class: "problem" }, "Add a .csv or .jsonl file with the shots first.")); return; }
    const form = new FormData();
    form.append("name", this.name.value.trim() || list.name);
    form.append("dry_run", String(isDry));
    form.append("shots", list, list.name);
    this.pictures().forEach((picture) => form.append("images", picture, picture.name));
    fill(this.result, h("p", { class: "hint" }, isDry ? "Checking …" : "Sending …"));
    try {
      const batch = await api("POST", "/batches", form);
      const [fresh, kept] = [batch.num_new ?? batch.shots.length, batch.num_reused ?? 0];
      const words = `${plural(fresh, "clip")}${kept ? `, ${kept} unchanged and kept` : ""}`;
      if (isDry) { fill(this.result, h("p", { class: "good" }, `All is well. To render: ${words}.`)); return; }
      fill(this.result);
      this.files = [];
      toast(`In the queue: ${words}.`, "good");
      this.onCreated(batch);
    } catch (error) {
      fill(this.result, h("div", { class: "problem", role: "alert" }, error.message.split("\n").map((line) => h("p", {}, line))));
    }
  }
}

function batchLine(batch) {
  const done = batch.counts.succeeded ?? 0;
  return h("li", { class: "row" }, h("a", { href: `#/video/batch/${batch.id}` }, batch.name), h("span", { class: "dim" }, `${done} of ${batch.num_shots} done  ·  ${batch.status}  ·  ${when(batch.created_at)}`));
}

/** One batch: counts and a grid of its clips. */
export class BatchView {
  constructor() {
    this.element = h("section", { class: "detail", "aria-label": "Batch" });
  }

  async show(id) {
    this.id = id;
    fill(this.element, h("p", { class: "hint" }, "Loading …"));
    await this.load();
  }

  async load() {
    const id = this.id;
    try {
      const batch = await api("GET", `/batches/${id}`);
      if (id !== this.id) return;
      this.batch = batch;
      this.jobs = new Map(batch.shots.map((s) => s.job).filter(Boolean).map((job) => [job.id, job]));
      this.render();
    } catch (error) {
      fill(this.element, h("p", { class: "problem" }, error.message));
    }
  }

  stop() { this.id = null; }

  update(job) {
    if (!this.id || !this.jobs?.has(job.id)) return;
    this.jobs.set(job.id, job);
    this.cells.get(job.id)?.replaceWith(this.cell(job));
    this.showCounts();
  }

  render() {
    this.cells = new Map();
    this.counts = h("div", { class: "counts" });
    this.actions = h("div", { class: "row actions" });
    fill(this.element, h("a", { href: "#/video/batches", class: "link back" }, "← Batches"), h("h1", {}, this.batch.name || this.id), this.counts, this.actions,
      h("div", { class: "grid" }, [...this.jobs.values()].map((job) => this.cell(job))));
    this.showCounts();
  }

  cell(job) {
    const cell = h("a", { class: `cell is-${job.status}`, href: `#/video/job/${job.id}`, title: job.error?.message ?? job.request.prompt }, thumbnail(job, "cell-picture"),
      h("span", { class: "cell-words" }, h("strong", {}, job.shot || job.request.prompt), h("span", { class: `chip-state ${job.status}` }, job.progress && !isTerminal(job) && job.status !== "queued" ? `${Math.floor(job.progress.percent)} %` : stateWord(job.status))));
    this.cells.set(job.id, cell);
    return cell;
  }

  showCounts() {
    const jobs = [...this.jobs.values()];
    const count = (...states) => jobs.filter((job) => states.includes(job.status)).length;
    const [done, bad, off] = [count("succeeded"), count("failed", "dead"), count("cancelled")];
    const left = jobs.length - done - bad - off;
    fill(this.counts, h("progress", { max: String(jobs.length || 1), value: String(done + bad + off), "aria-label": "Finished clips" }),
      h("span", {}, [`${done} done`, `${bad} failed`, off ? `${off} cancelled` : "", `${left} left`].filter(Boolean).join("  ·  ")));
    const button = (text, action, kind = "") => h("button", { type: "button", class: kind, onclick: action }, text);
    fill(this.actions, bad > 0 && button(`Retry ${bad} failed`, () => this.retry(), "primary"),
      jobs.some(clipOf) && button("Contact sheet", () => this.sheet()));
  }

  async retry() {
    try {
      await api("POST", `/batches/${this.id}/retry`);
      toast("Queued again.", "good");
      this.load();
    } catch (error) {
      toast(error.message, "bad");
    }
  }

  async sheet() {
    try {
      const url = await objectUrl(`/batches/${this.id}/contact_sheet.png`);
      h("a", { href: url, download: `${this.batch.name || this.id}_contact_sheet.png` }).click();
      setTimeout(() => URL.revokeObjectURL(url), 60000);
    } catch (error) {
      toast(error.message, "bad");
    }
  }
}
