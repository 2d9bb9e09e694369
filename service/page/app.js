// Puts the page together: routes, live updates, shortcuts.

import { api, onKeyChange, readBlob, readKey, refusal, takeKeyFromAddress } from "./api.js";
import { BatchForm, BatchView } from "./batch.js";
import { Chat } from "./chat.js";
import { byId, fill, h, toast } from "./dom.js";
import { FactsBar } from "./facts.js";
import { SubmitForm } from "./form.js";
import { JobView } from "./job.js";
import { JobList } from "./jobs.js";
import { askKey, showShortcuts } from "./keys.js";
import { followJobs } from "./live.js";
import { inputPath } from "./model.js";

const FACTS_MS = 4000;

class Page {
  constructor() {
    this.bar = new FactsBar(byId("facts"), { onEngine: () => this.chat.engine.open() });
    this.form = new SubmitForm({ onSubmitted: (job) => this.onSubmitted(job) });
    this.list = new JobList({ go: (...where) => this.go(...where) });
    this.job = new JobView({ onDuplicate: (job) => this.duplicate(job), onGone: () => { this.list.load(); this.go("video"); } });
    this.batchForm = new BatchForm({ onCreated: (batch) => this.go(`video/batch/${batch.id}`) });
    this.batch = new BatchView();
    this.chat = new Chat();
    this.pane = h("div", { class: "pane" });
    this.sections = h("nav", { class: "sections", "aria-label": "Video" }, h("a", { href: "#/video" }, "Jobs"), h("a", { href: "#/video/batches" }, "Batches"));
    this.video = h("div", { class: "video" }, this.form.element, h("div", { class: "side" }, this.sections, this.pane));
  }

  start() {
    takeKeyFromAddress();
    restoreTheme();
    addEventListener("hashchange", () => this.route());
    addEventListener("keydown", (event) => this.onKey(event));
    byId("keys").addEventListener("click", askKey);
    byId("help").addEventListener("click", showShortcuts);
    byId("theme").addEventListener("click", switchTheme);
    document.querySelector(".skip").addEventListener("click", (e) => { e.preventDefault(); byId("main").focus(); });
    onKeyChange(() => { if (refusal()) askKey(); else { this.loadModels(); this.list.load(); this.route(); } });
    this.route();
    this.loadModels();
    this.refreshFacts();
    followJobs({ onJob: (job) => this.onJob(job), onGone: (id) => this.list.forget(id), onMode: (mode) => this.bar.setMode(mode), onCatchUp: () => this.catchUp() });
  }

  // -------------------------------------------------------------- routes

  /** Goes to a place; `parameters` become the query of the hash. */
  go(place, parameters = {}, isReplacing = false) {
    const query = new URLSearchParams(Object.entries(parameters).filter(([, v]) => v)).toString();
    const hash = `#/${place}${query ? `?${query}` : ""}`;
    if (!isReplacing) { location.hash = hash; return; }
    history.replaceState(null, "", hash);
    this.route();
  }

  route() {
    const [path, query] = (location.hash.slice(2) || "video").split("?");
    const [tab, section, id] = path.split("/");
    const isChat = tab === "chat";
    mark("tab-video", !isChat);
    mark("tab-chat", isChat);
    document.title = isChat ? "Chat – lanewise" : "lanewise";
    const wanted = isChat ? this.chat.element : this.video;
    if (byId("main").firstChild !== wanted) fill(byId("main"), wanted);
    if (!isChat) this.routeVideo(section, id, Object.fromEntries(new URLSearchParams(query)));
    if (isChat) { this.chat.text.focus(); this.chat.engine.start(); }
  }

  routeVideo(section, id, parameters) {
    this.job.stop();
    this.batch.stop();
    const [jobs, batches] = this.sections.children;
    const isBatch = section === "batch" || section === "batches";
    this.video.classList.toggle("is-reading", Boolean(section));
    jobs.toggleAttribute("aria-current", !isBatch);
    batches.toggleAttribute("aria-current", isBatch);
    if (section === "job" && id) { fill(this.pane, this.job.element); this.job.show(id); return; }
    if (section === "batch" && id) { fill(this.pane, this.batch.element); this.batch.show(id); return; }
    if (section === "batches") { fill(this.pane, this.batchForm.element); this.batchForm.show(); return; }
    fill(this.pane, this.list.element);
    this.list.show(parameters);
    this.form.draw();
  }

  // -------------------------------------------------------------- live

  onJob(job) {
    this.list.update(job);
    this.job.update(job);
    this.batch.update(job);
  }

  /** Reads again what is shown: changes may have been missed while no stream was open. */
  catchUp() {
    if (this.list.element.isConnected) this.list.load();
    this.job.refresh();
    if (this.batch.id && this.batch.element.isConnected) this.batch.load();
  }

  onSubmitted(job) {
    if (job.status) this.list.update(job);
    if (this.pane.firstChild !== this.list.element) this.go("video");
  }

  async refreshFacts() {
    const facts = await this.bar.refresh();
    this.form.showWaiting(facts.queue_depth ?? 0);
    if (facts.isReachable && !this.knowsModels && !refusal()) this.loadModels();
    setTimeout(() => this.refreshFacts(), FACTS_MS);
  }

  async loadModels() {
    try {
      const models = (await api("GET", "/v1/models")).data;
      const video = models.find((m) => m.role === "video" && m.limits) ?? models.find((m) => m.role === "video");
      this.chat.setModels(models.filter((m) => m.role === "llm").map((m) => m.id));
      if (video) this.form.setModel(video.id, video.limits ?? {});
      this.knowsModels = models.length > 0 && models.every((m) => m.limits);
    } catch (error) {
      if (error.status !== 401 && error.status !== 0) toast(error.message, "bad");
    }
  }

  async duplicate(job) {
    let file = null;
    try {
      const blob = await readBlob(inputPath(job));
      file = new File([blob], job.request.image_name || "picture.png", { type: blob.type });
    } catch {
      toast("The picture of this job is no longer stored. Choose it again.", "bad");
    }
    await this.form.load(job, file);
    scrollTo({ top: 0, behavior: "smooth" });
  }

  // -------------------------------------------------------------- keyboard

  onKey(event) {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && this.form.element.isConnected) { event.preventDefault(); this.form.element.requestSubmit(); return; }
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || document.querySelector("dialog[open]")) return;
    const isTyping = event.target.matches("textarea, select, input:not([type=checkbox], [type=radio], [type=range])");
    if (event.key === "Escape") { if (isTyping) event.target.blur(); else if (location.hash.includes("/job/")) history.back(); return; }
    if (isTyping || event.target.closest(".rows") && "jkx".includes(event.key)) return;
    const action = this.shortcuts()[event.key];
    if (action) { event.preventDefault(); action(); }
  }

  shortcuts() {
    const inVideo = (act) => () => {
      if (this.form.element.isConnected) act();
      else { this.go("video"); setTimeout(act, 50); }
    };
    const step = (key) => () => this.job.video?.isConnected && this.job.video.dispatchEvent(new KeyboardEvent("keydown", { key }));
    return { "?": showShortcuts, v: () => this.go("video"), c: () => this.go("chat"), e: () => this.chat.engine.open(), t: switchTheme, k: askKey, n: inVideo(() => this.form.prompt.focus()), p: inVideo(() => byId("picture").click()),
      "/": inVideo(() => byId("filter-text")?.focus()), j: inVideo(() => this.list.list.querySelector("a.open")?.focus()), ",": step(","), ".": step(".") };
  }
}

function mark(id, isCurrent) {
  if (isCurrent) byId(id).setAttribute("aria-current", "page"); else byId(id).removeAttribute("aria-current");
}

function restoreTheme() {
  const theme = localStorage.getItem("lanewise.theme");
  if (theme) document.documentElement.dataset.theme = theme;
}

function switchTheme() {
  const root = document.documentElement;
  const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  localStorage.setItem("lanewise.theme", root.dataset.theme);
}

new Page().start();
if (!readKey()) api("GET", "/v1/models").catch(() => null);
