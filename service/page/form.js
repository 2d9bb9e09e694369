// The form that turns a picture and a sentence into jobs.

import { api } from "./api.js";
import { byId, fill, h, plural, toast } from "./dom.js";
import { FALLBACK_LIMITS, fitWords, randomSeed, sizePresets } from "./model.js";
import { drawFit, pictureFile, readPicture } from "./pictures.js";

const EXAMPLES = ["slow zoom in", "pan to the left", "gentle waves", "rotate clockwise",
  "float up and down", "sway in the wind, slowly", "parallax, camera moves right"];

export class SubmitForm {
  constructor({ onSubmitted }) {
    this.onSubmitted = onSubmitted;
    this.picture = null;
    this.model = null;
    this.limits = FALLBACK_LIMITS;
    this.busy = false;
    this.element = this.build();
    this.refreshSizes();
    addEventListener("resize", () => this.draw());
    document.addEventListener("paste", (event) => this.onPaste(event));
  }

  // -------------------------------------------------------------- parts

  build() {
    this.input = h("input", { type: "file", id: "picture", accept: "image/png,image/jpeg,image/webp", class: "visually-hidden",
      onchange: () => this.take(this.input.files[0]) });
    this.canvas = h("canvas", { role: "img", "aria-label": "The picture with the part that the clip shows" });
    this.stage = h("div", { class: "stage" });
    this.drop = h("div", { class: "drop", ondragover: (e) => this.onDrag(e), ondragleave: () => this.drop.classList.remove("over"),
      ondrop: (e) => this.onDrop(e) }, this.input, this.stage);
    this.error = h("p", { class: "problem", role: "alert", hidden: true });
    this.button = h("button", { type: "submit", class: "primary", id: "submit" }, "Make the clip");
    this.place = h("span", { class: "hint", id: "place" });
    const form = h("form", { class: "card form", "aria-label": "New clip", novalidate: true, onsubmit: (e) => this.onSubmit(e), oninput: () => this.onInput() },
      this.drop, this.promptField(), this.shapeFields(), this.seedFields(), this.moreFields(), this.error,
      h("div", { class: "row" }, this.button, this.place));
    this.showStage();
    return form;
  }

  promptField() {
    this.prompt = h("textarea", { id: "prompt", rows: 2, required: true, placeholder: "How should it move?" });
    const chips = EXAMPLES.map((text) => h("button", { type: "button", class: "chip", onclick: () => this.addExample(text) }, text));
    return h("div", { class: "field" }, h("label", { for: "prompt" }, "Prompt"), this.prompt, h("div", { class: "chips", "aria-label": "Examples" }, chips));
  }

  shapeFields() {
    this.size = h("select", { id: "size", onchange: () => this.onSize() });
    this.width = number("width", { min: 16, step: 1 });
    this.height = number("height", { min: 16, step: 1 });
    this.custom = h("div", { class: "pair", hidden: true }, field("Width", this.width, "px"), field("Height", this.height, "px"));
    this.seconds = number("seconds", { min: 0.1, step: 0.1, value: "2" });
    const choice = (value, text, checked) => h("label", { class: "segment" },
      h("input", { type: "radio", name: "fit", value, checked, onchange: () => this.draw() }), h("span", {}, text));
    this.fit = h("fieldset", { class: "segments" }, h("legend", {}, "Fit"), choice("crop", "Crop", true), choice("pad", "Pad"));
    return [h("div", { class: "shape" }, field("Size", this.size), this.fit), this.custom];
  }

  seedFields() {
    this.seed = number("seed", { min: 0, max: Number.MAX_SAFE_INTEGER, step: 1, value: String(randomSeed()) });
    this.locked = h("input", { type: "checkbox", id: "lock" });
    this.count = number("count", { min: 1, max: 64, step: 1, value: "1" });
    return h("div", { class: "numbers" }, field("Length", this.seconds, "s"), field("Clips", this.count), field("Seed", this.seed),
      h("label", { class: "check", title: "Keep this seed for the next clip" }, this.locked, "Lock"));
  }

  moreFields() {
    this.fps = number("fps", { min: 1, step: 1 });
    this.steps = number("steps", { min: 1, step: 1 });
    this.project = h("input", { id: "project", autocomplete: "off", placeholder: "none" });
    this.tags = h("input", { id: "tags", autocomplete: "off", placeholder: "one, two" });
    this.priority = h("select", { id: "priority" }, ["Low:10", "Normal:0", "High:-10"].map((entry) => {
      const [name, value] = entry.split(":");
      return h("option", { value, selected: value === "0" }, name);
    }));
    this.negative = h("input", { id: "negative", autocomplete: "off" });
    this.negativeField = field("Avoid", this.negative);
    return h("details", { class: "more" }, h("summary", {}, "Frames, project, priority"),
      h("div", { class: "trio" }, field("Frame rate", this.fps, "fps"), field("Steps", this.steps), field("Priority", this.priority)),
      h("div", { class: "pair" }, field("Project", this.project), field("Tags", this.tags)), this.negativeField);
  }

  showStage() {
    if (this.picture) {
      this.caption = h("span", {});
      fill(this.stage, h("div", { class: "frame" }, this.canvas), h("div", { class: "row small" }, this.caption,
        h("label", { for: "picture", class: "link", tabindex: 0, role: "button", onkeydown: press }, "Change"),
        h("button", { type: "button", class: "link", onclick: () => this.clearPicture() }, "Remove")));
      this.draw();
      return;
    }
    fill(this.stage, h("label", { for: "picture", class: "empty", tabindex: 0, role: "button", onkeydown: press },
      h("strong", {}, "Choose a picture"), h("span", {}, "or drop it here, or paste it")));
  }

  // -------------------------------------------------------------- pictures

  onDrag(event) { event.preventDefault(); this.drop.classList.add("over"); }

  onDrop(event) {
    event.preventDefault();
    this.drop.classList.remove("over");
    this.take(pictureFile(event.dataTransfer) ?? event.dataTransfer.files[0]);
  }

  onPaste(event) {
    const file = this.element.isConnected && pictureFile(event.clipboardData);
    if (file) { event.preventDefault(); this.take(file); }
  }

  async take(file, fileId = null) {
    if (!file) return;
    try {
      this.picture = { ...(await readPicture(file)), fileId };
      this.complain("");
      this.showStage();
      this.refreshSizes();
    } catch (error) {
      this.complain(error.message);
    }
  }

  clearPicture() {
    this.picture = null;
    this.input.value = "";
    this.showStage();
    this.refreshSizes();
  }

  draw() {
    if (!this.picture || !this.canvas.isConnected) return;
    const [size, fit] = [this.chosenSize(), this.chosenFit()];
    if (!size.width || !size.height) return;
    drawFit(this.canvas, this.picture, size, fit);
    fill(this.caption, `${size.width} × ${size.height}, ${fitWords(this.picture, size, fit)}`);
    this.caption.title = `The picture is ${this.picture.width} × ${this.picture.height}.`;
  }

  // -------------------------------------------------------------- values

  setModel(model, limits) {
    this.model = model;
    this.limits = { ...FALLBACK_LIMITS, ...limits };
    if (!this.fps.value || !this.isTouched) {
      this.fps.value = this.limits.default_fps;
      this.steps.value = this.limits.default_steps;
      this.seconds.value = this.limits.default_seconds;
    }
    this.fps.min = this.limits.min_fps; this.fps.max = this.limits.max_fps;
    this.steps.min = this.limits.min_steps; this.steps.max = this.limits.max_steps;
    this.seconds.max = (this.limits.max_frames / this.limits.min_fps).toFixed(1);
    this.negativeField.hidden = !this.limits.has_negative_prompt;
    this.refreshSizes();
  }

  refreshSizes() {
    const chosen = this.size.selectedIndex;
    this.presets = sizePresets(this.picture, this.limits);
    fill(this.size, this.presets.map((p, i) => h("option", { value: String(i) }, `${p.name}  ${p.width}×${p.height}`)), h("option", { value: "custom" }, "Other …"));
    this.size.selectedIndex = Math.max(0, chosen);
    this.draw();
  }

  onSize() {
    const isCustom = this.size.value === "custom";
    if (isCustom && !this.width.value) {
      const { width, height } = this.presets[0];
      [this.width.value, this.height.value] = [width, height];
    }
    this.custom.hidden = !isCustom;
    this.draw();
  }

  chosenSize() {
    if (this.size.value === "custom") return { width: Number(this.width.value), height: Number(this.height.value) };
    return this.presets[Number(this.size.value)] ?? this.presets[0];
  }

  chosenFit() { return this.element?.querySelector("input[name=fit]:checked")?.value ?? "crop"; }

  addExample(text) {
    const now = this.prompt.value.trim();
    this.prompt.value = now && !now.includes(text) ? `${now}, ${text}` : text;
    this.onInput();
    this.prompt.focus();
  }

  onInput() {
    this.isTouched = true;
    const count = Number(this.count.value) || 1;
    fill(this.button, count > 1 ? `Make ${count} clips` : "Make the clip");
    this.complain("");
    this.draw();
  }

  showWaiting(count) { fill(this.place, count ? `${plural(count, "job")} ahead` : "starts at once"); }

  complain(text) { this.error.hidden = !text; fill(this.error, text); }

  // -------------------------------------------------------------- submit

  /** The body of POST /jobs for one seed. */
  body(seed) {
    const { width, height } = this.chosenSize();
    return { image: this.picture.fileId, prompt: this.prompt.value.trim(), seconds: Number(this.seconds.value),
      fps: Number(this.fps.value) || this.limits.default_fps, size: `${width}x${height}`, fit: this.chosenFit(), seed,
      steps: Number(this.steps.value) || this.limits.default_steps,
      ...(this.model ? { model: this.model } : {}), ...(this.negative.value && this.limits.has_negative_prompt ? { negative_prompt: this.negative.value } : {}),
      project: this.project.value.trim(), tags: this.tags.value.split(",").map((t) => t.trim()).filter(Boolean),
      priority: Number(this.priority.value) };
  }

  check() {
    if (!this.picture) return ["Choose a picture first.", this.element.querySelector("label.empty")];
    if (!this.prompt.value.trim()) return ["Say how it should move.", this.prompt];
    const wrong = [...this.element.querySelectorAll("input")].find((input) => !input.validity.valid);
    if (!wrong) return null;
    wrong.closest("details")?.setAttribute("open", "");
    return [`${this.element.querySelector(`label[for=${wrong.id}]`)?.textContent ?? wrong.id}: ${wrong.validationMessage}`, wrong];
  }

  async onSubmit(event) {
    event.preventDefault();
    const problem = this.check();
    if (problem) { this.complain(problem[0]); problem[1]?.focus(); return; }
    if (this.busy) return;
    this.busy = true;
    this.button.setAttribute("aria-busy", "true");
    try {
      await this.submit();
    } catch (error) {
      this.complain(error.param ? `${error.message} (${error.param})` : error.message);
    } finally {
      this.busy = false;
      this.button.removeAttribute("aria-busy");
    }
  }

  async submit() {
    const [count, first] = [Math.max(1, Number(this.count.value) || 1), Number(this.seed.value)];
    this.picture.fileId ??= await upload(this.picture.file);
    const jobs = [];
    for (let i = 0; i < count; i += 1) {
      const job = await api("POST", "/jobs", this.body(first + i), { idempotencyKey: crypto.randomUUID?.() ?? String(randomSeed()) });
      jobs.push(job);
      this.onSubmitted(job);
    }
    const ahead = jobs[0].queue_position;
    toast(`${plural(count, "clip")} in the queue${ahead ? `, ${plural(ahead, "job")} ahead` : ""}.`, "good");
    if (!this.locked.checked) this.seed.value = randomSeed();
  }

  /** Fills in everything from another job. `file` is its picture. */
  async load(job, file) {
    const [request, its] = [job.request, job];
    this.isTouched = true;
    this.prompt.value = request.prompt;
    for (const name of ["seconds", "fps", "steps", "width", "height", "seed"]) this[name].value = request[name];
    this.negative.value = request.negative_prompt ?? "";
    this.locked.checked = true;
    this.project.value = its.project;
    this.tags.value = its.tags.join(", ");
    this.element.querySelector(`input[name=fit][value=${request.fit}]`).checked = true;
    if (file) await this.take(file, request.image);
    this.size.value = "custom";
    this.onSize();
    this.prompt.focus();
  }
}

export async function upload(file) {
  const form = new FormData();
  form.append("purpose", "vision");
  form.append("file", file, file.name || "picture.png");
  return (await api("POST", "/v1/files", form)).id;
}

const number = (id, props) => h("input", { type: "number", id, inputmode: "decimal", ...Object.fromEntries(Object.entries(props).map(([k, v]) => [k, String(v)])) });

function field(text, control, unit) {
  return h("div", { class: "field" }, h("label", { for: control.id }, text), unit ? h("span", { class: "unit", dataset: { unit } }, control) : control);
}

function press(event) {
  if (event.key === "Enter" || event.key === " ") { event.preventDefault(); byId("picture").click(); }
}
