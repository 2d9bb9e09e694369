// The job list: filters, pages, selection, live rows.

import { api } from "./api.js";
import { clock, confirm, fill, h, plural, toast, when } from "./dom.js";
import { canRetry, clipOf, elapsed, isTerminal, LIVE, stageWord, STATES, stateWord } from "./model.js";
import { thumbnail } from "./pictures.js";

const PAGE = 50;
const MOST_SCANNED = 1000;

export class JobList {
  constructor({ go }) {
    this.go = go;
    this.jobs = new Map();
    this.rows = new Map();
    this.selected = new Set();
    this.cursors = [""];
    this.filters = { state: "", project: "", tag: "", q: "", hide: "" };
    this.element = this.build();
    setInterval(() => this.tick(), 1000);
  }

  build() {
    this.list = h("ul", { class: "rows", "aria-label": "Jobs", onkeydown: (e) => this.onKey(e) });
    this.actions = h("div", { class: "row actions", role: "toolbar", "aria-label": "Selected jobs", hidden: true });
    this.pager = h("div", { class: "row pager" });
    this.controls = {
      state: h("select", { id: "filter-state", "aria-label": "State" }, h("option", { value: "" }, "Every state"),
        STATES.map((s) => h("option", { value: s }, stateWord(s)))),
      project: h("input", { type: "search", "aria-label": "Project", placeholder: "Project" }),
      tag: h("input", { type: "search", "aria-label": "Tag", placeholder: "Tag" }),
      q: h("input", { type: "search", id: "filter-text", "aria-label": "Text in the prompt", placeholder: "Find in prompts  /" }),
    };
    this.hide = h("input", { type: "checkbox" });
    const filters = h("form", { class: "row filters", role: "search", onsubmit: (e) => e.preventDefault(), oninput: () => this.onFilter() },
      this.controls.q, this.controls.state, this.controls.project, this.controls.tag, h("label", { class: "check" }, this.hide, "Hide finished"));
    return h("section", { class: "list", "aria-label": "Job list" }, filters, this.actions, this.list, this.pager);
  }

  // -------------------------------------------------------------- filters

  onFilter() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      const values = Object.fromEntries(Object.entries(this.controls).map(([k, c]) => [k, c.value.trim()]));
      this.go("video", { ...values, hide: this.hide.checked ? "1" : "" }, true);
    }, 250);
  }

  /** Applies the filters of the address; loads only when they changed. */
  show(parameters) {
    const next = Object.fromEntries(Object.keys(this.filters).map((k) => [k, parameters[k] ?? ""]));
    const isSame = JSON.stringify(next) === JSON.stringify(this.filters);
    if (isSame && this.loadedOnce) return;
    this.filters = next;
    for (const [name, control] of Object.entries(this.controls)) {
      if (document.activeElement !== control) control.value = next[name];
    }
    this.hide.checked = next.hide === "1";
    this.cursors = [""];
    this.load();
  }

  matches(job) {
    const { state, project, tag, q, hide } = this.filters;
    const its = job;
    if (state && job.status !== state) return false;
    if (hide && isTerminal(job)) return false;
    if (project && its.project !== project) return false;
    if (tag && !its.tags.includes(tag)) return false;
    return !q || [job.request.prompt, its.shot, job.id].join(" ").toLowerCase().includes(q.toLowerCase());
  }

  query(after) {
    const query = new URLSearchParams({ limit: String(PAGE), order: "desc" });
    for (const [name, key] of [["project", "project"], ["tag", "tag"]]) if (this.filters[name]) query.set(key, this.filters[name]);
    const states = this.filters.state ? [this.filters.state] : this.filters.hide ? LIVE : [];
    states.forEach((state) => query.append("status", state));
    if (after) query.set("after", after);
    return `/jobs?${query}`;
  }

  /** One page; with a text filter, older pages are read until the page is full. */
  async load() {
    const ticket = this.ticket = {};
    this.loadedOnce = true;
    try {
      let [after, found, more, scanned] = [this.cursors.at(-1), [], true, 0];
      while (more && found.length < PAGE && scanned < MOST_SCANNED) {
        const page = await api("GET", this.query(after));
        if (ticket !== this.ticket) return;
        found.push(...page.data.filter((job) => this.matches(job)));
        scanned += page.data.length;
        [more, after] = [page.has_more, page.data.at(-1)?.id ?? after];
      }
      this.next = more ? after : "";
      this.jobs = new Map(found.map((job) => [job.id, job]));
      this.render();
    } catch (error) {
      if (ticket === this.ticket && error.status !== 401) fill(this.list, h("li", { class: "empty-list problem" }, error.message));
    }
  }

  // -------------------------------------------------------------- rows

  render() {
    this.rows = new Map([...this.jobs.values()].map((job) => [job.id, this.row(job)]));
    fill(this.list, [...this.rows.values()]);
    if (!this.jobs.size) fill(this.list, h("li", { class: "empty-list" }, this.emptyWords()));
    fill(this.pager,
      this.cursors.length > 1 && h("button", { type: "button", onclick: () => this.turn(-1) }, "← Newer"),
      this.next && h("button", { type: "button", onclick: () => this.turn(1) }, "Older →"));
    this.showActions();
  }

  emptyWords() {
    const isFiltered = Object.values(this.filters).some(Boolean);
    return isFiltered ? "No job matches these filters." : "Nothing here yet. Choose a picture on the left, say how it should move, and your clips appear here.";
  }

  turn(step) {
    if (step > 0) this.cursors.push(this.next); else this.cursors.pop();
    this.load();
    this.element.scrollIntoView({ block: "start" });
  }

  row(job) {
    const its = job;
    const box = h("input", { type: "checkbox", "aria-label": `Select ${job.request.prompt}`, checked: this.selected.has(job.id),
      onchange: (e) => this.select(job.id, e.target.checked) });
    const facts = [its.project, its.shot, ...its.tags.map((t) => `#${t}`), `seed ${job.request.seed}`, job.attempt > 1 ? `attempt ${job.attempt}` : "", when(job.created_at)];
    return h("li", { class: `job is-${job.status}`, dataset: { id: job.id } }, box,
      h("a", { class: "open", href: `#/video/job/${job.id}` }, thumbnail(job),
        h("span", { class: "words" }, h("span", { class: "prompt" }, job.request.prompt), h("span", { class: "facts-line" }, facts.filter(Boolean).join("  ·  ")))),
      h("span", { class: `chip-state ${job.status}` }, stateWord(job.status)), progressCell(job), this.rowButtons(job));
  }

  rowButtons(job) {
    const button = (text, verb) => h("button", { type: "button", class: "quiet", onclick: () => this.act(verb, [job.id]) }, text);
    if (!isTerminal(job)) return h("span", { class: "buttons" }, job.status !== "cancelling" && button("Cancel", "cancel"));
    const clip = clipOf(job);
    return h("span", { class: "buttons" }, clip?.url && h("a", { class: "button quiet", href: clip.url, download: fileName(job) }, "Save"), canRetry(job) && button("Retry", "retry"));
  }

  /** A changed job: its row is drawn again in place, new ones join the first page. */
  update(job) {
    if (!this.loadedOnce) return;
    const [had, fits] = [this.rows.get(job.id), this.matches(job)];
    if (!had && !(fits && this.cursors.length === 1 && this.isNewest(job))) return;
    if (!fits) { this.forget(job.id); return; }
    const hadFocus = had?.contains(document.activeElement) ? document.activeElement.className : null;
    const row = this.row(job);
    if (!this.rows.size) fill(this.list);
    this.jobs.set(job.id, job);
    this.rows.set(job.id, row);
    if (had) { keepPicture(had, row); had.replaceWith(row); } else this.list.prepend(row);
    if (hadFocus !== null) (row.getElementsByClassName(hadFocus)[0] ?? row.querySelector("a.open")).focus();
  }

  /** A job that is gone, or that no longer matches the filters. */
  forget(id) {
    this.rows.get(id)?.remove();
    this.rows.delete(id);
    this.jobs.delete(id);
    this.selected.delete(id);
    if (!this.rows.size) this.render();
  }

  isNewest(job) {
    const newest = [...this.jobs.keys()].reduce((a, b) => (a > b ? a : b), "");
    return job.id > newest;
  }

  tick() {
    if (!this.element.isConnected) return;
    for (const [id, job] of this.jobs) {
      if (job.status === "running") this.rows.get(id)?.querySelector(".elapsed")?.replaceChildren(clock(elapsed(job)));
    }
  }

  // -------------------------------------------------------------- actions

  select(id, isOn) {
    if (isOn) this.selected.add(id); else this.selected.delete(id);
    this.showActions();
  }

  showActions() {
    const ids = [...this.selected];
    this.actions.hidden = !ids.length;
    const button = (text, action, kind = "") => h("button", { type: "button", class: kind, onclick: action }, text);
    fill(this.actions, h("strong", {}, `${ids.length} selected`), button("Cancel", () => this.act("cancel", ids)), button("Retry", () => this.act("retry", ids)),
      button("Save clips", () => this.save(ids)), button("Delete", () => this.remove(ids), "danger"), button("Clear", () => this.clear(), "quiet"));
  }

  clear() { this.selected.clear(); this.render(); }

  async act(verb, ids) {
    const results = await Promise.allSettled(ids.map((id) => api("POST", `/jobs/${id}/${verb}`)));
    results.forEach((result) => result.status === "fulfilled" && result.value?.id && this.update(result.value));
    report(results, verb === "cancel" ? "cancelled" : "queued again");
    this.selected.clear();
    this.showActions();
  }

  async remove(ids) {
    const text = `${plural(ids.length, "job")} and all files of ${ids.length === 1 ? "it" : "them"} will be deleted. This cannot be undone.`;
    if (!(await confirm("Delete jobs", text, "Delete"))) return;
    report(await Promise.allSettled(ids.map((id) => api("DELETE", `/jobs/${id}`))), "deleted");
    this.selected.clear();
    this.load();
  }

  save(ids) {
    const done = ids.map((id) => this.jobs.get(id)).filter((job) => job && clipOf(job)?.url);
    done.forEach((job, i) => setTimeout(() => h("a", { href: clipOf(job).url, download: fileName(job) }).click(), i * 300));
    toast(done.length ? `Saving ${plural(done.length, "clip")}.` : "None of these has a clip yet.");
  }

  onKey(event) {
    const row = event.target.closest(".job");
    if (!row || event.target.matches("input:not([type=checkbox])") || event.ctrlKey || event.metaKey) return;
    const to = { j: row.nextElementSibling, ArrowDown: row.nextElementSibling, k: row.previousElementSibling, ArrowUp: row.previousElementSibling }[event.key];
    if (to) { event.preventDefault(); to.querySelector("a.open")?.focus(); }
    if (event.key === "x") { event.preventDefault(); row.querySelector("input").click(); }
  }
}

export function progressCell(job) {
  if (job.status === "queued") {
    const ahead = job.queue_position;
    return h("span", { class: "progress" }, h("span", { class: "dim" }, ahead ? `${plural(ahead, "job")} ahead` : "next"));
  }
  if (isTerminal(job)) {
    const text = job.error ? job.error.message : job.status === "succeeded" ? `took ${clock(elapsed(job))}` : "";
    return h("span", { class: "progress" }, h("span", { class: "dim clip", title: text }, text));
  }
  const { stage = "load", step = 0, steps = 0, percent = 0, eta_seconds: eta = null } = job.progress ?? {};
  return h("span", { class: "progress" },
    h("span", { class: "line" }, h("span", {}, steps ? `${stageWord(stage)} ${step}/${steps}` : stageWord(stage)), h("span", {}, `${Math.floor(percent)} %`)),
    h("progress", { max: "100", value: String(percent), "aria-label": "Progress" }),
    h("span", { class: "line dim" }, h("span", { class: "elapsed" }, clock(elapsed(job))), h("span", {}, eta === null ? "" : `${clock(eta)} left`)));
}

/** A file name that says what it is: project_shot_seed.mp4. */
export function fileName(job) {
  const its = job;
  const parts = [its.project || "clip", its.shot || job.id.slice(-6), job.request.seed];
  return `${parts.join("_").replaceAll(/[^\p{L}\p{N}._-]+/gu, "-")}.mp4`;
}

/** Keeps the loaded picture of a row, so that nothing flickers while a job runs. */
function keepPicture(before, after) {
  const [old, fresh] = [before.querySelector("img"), after.querySelector("img")];
  if (old?.src && !fresh.getAttribute("src")) fresh.replaceWith(old);
}

export function report(results, word) {
  const failed = results.filter((r) => r.status === "rejected");
  const count = results.length - failed.length;
  if (count) toast(`${plural(count, "job")} ${word}.`, "good");
  if (failed.length) toast(`${plural(failed.length, "job")}: ${failed[0].reason.message}`, "bad");
}
