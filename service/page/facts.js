// The top bar: is the service ready, which workers are there, how long is the queue.

import { readiness } from "./api.js";
import { dialog, fill, h, plural } from "./dom.js";

const STATE_WORDS = { loading: "loading", idle: "idle", busy: "busy", failed: "failed", lost: "lost" };

export class FactsBar {
  constructor(element, { onEngine }) {
    this.onEngine = onEngine;
    this.element = element;
    this.facts = {};
    this.mode = "live";
  }

  async refresh() {
    this.facts = await readiness();
    this.render();
    return this.facts;
  }

  setMode(mode) { this.mode = mode; this.render(); }

  render() {
    const { isReady, isReachable, queue_depth: depth = null, workers = [] } = this.facts;
    const [word, kind] = isReachable === undefined ? ["", ""] : isReady ? ["ready", "good"] : isReachable ? ["starting", "wait"] : ["not reachable", "bad"];
    fill(this.element,
      workers.map((w) => h(w.role === "llm" ? "button" : "span", { type: w.role === "llm" ? "button" : null, onclick: w.role === "llm" ? this.onEngine : null, class: `worker is-${w.state}`, title: this.title(w) }, h("i", { class: "dot" }), h("b", {}, w.role), h("span", { class: "model" }, w.model), h("span", { class: "state" }, STATE_WORDS[w.state] ?? w.state))),
      h("span", { class: "queue", title: "Jobs that wait" }, depth === null ? "" : `${plural(depth, "job")} waiting`),
      word && h("button", { type: "button", class: `ready ${kind}`, onclick: () => this.explain() }, h("i", { class: "dot" }), word, this.mode === "polling" && isReachable ? " (polling)" : ""));
  }

  title(worker) {
    return [`${worker.role} worker: ${worker.state}`, worker.model, worker.devices, worker.source, worker.error].filter(Boolean).join("\n");
  }

  explain() {
    const { isReachable, workers = [], isReady, not_ready: missing = [] } = this.facts;
    const words = isReady ? "The service takes work." : isReachable ? "Something is not ready yet. The page goes on by itself." : "Nothing answers at this address. Start it with: lanewise serve";
    dialog("State of the service", h("p", {}, words),
      missing.map((m) => h("p", { class: "problem" }, `${m.what}${m.model ? ` (${m.model})` : ""}: ${m.why}`)),
      workers.map((w) => h("div", {}, h("p", { class: `worker is-${w.state}` }, h("i", { class: "dot" }), h("b", {}, w.role), w.model, h("span", { class: "state" }, `${w.state}, on ${w.devices || "cpu"}`)), w.error && h("p", { class: "problem" }, w.error))),
      h("form", { method: "dialog", class: "row end" }, h("button", {}, "Close")));
  }
}
