// The API key prompt and the list of shortcuts.

import { api, readKey, refusal, writeKey } from "./api.js";
import { dialog, fill, h, toast } from "./dom.js";

let open = null;

/** Asks for a key; says why when the present one was refused. */
export function askKey() {
  if (open?.isConnected) return;
  const input = h("input", { type: "password", id: "key", autocomplete: "off", spellcheck: "false", placeholder: "sk-…", value: readKey() });
  const problem = h("p", { class: "problem", role: "alert" }, readKey() ? refusal() : "");
  const form = h("form", { class: "form", onsubmit: (e) => { e.preventDefault(); tryKey(input, problem); } },
    h("p", { class: "hint" }, "This service wants a key. The first one is in ", h("code", {}, "first-key.txt"), " in the data folder; ", h("code", {}, "lanewise keys create"), " makes more. It stays in this browser."),
    h("div", { class: "field" }, h("label", { for: "key" }, "Key"), input), problem,
    h("div", { class: "row end" }, readKey() && h("button", { type: "button", class: "quiet", onclick: () => { writeKey(""); open.close(); toast("Key forgotten."); } }, "Forget it"),
      h("button", { type: "submit", class: "primary" }, "Use this key")));
  open = dialog("API key", form);
  input.select();
}

async function tryKey(input, problem) {
  const key = input.value.trim();
  const before = readKey();
  fill(problem);
  if (!key.startsWith("sk-")) { fill(problem, "A key starts with sk-. Paste the whole line."); return; }
  try {
    localStorage.setItem("lanewise.key", key);
    await api("GET", "/v1/models");
    writeKey(key);
    open.close();
    toast("The key works.", "good");
  } catch (error) {
    writeKey(before);
    fill(problem, error.status === 401 ? `The service does not know this key. ${error.message}` : error.message);
    input.select();
  }
}

const SHORTCUTS = [["v", "Video"], ["c", "Chat"], ["e", "The engine's figures"], ["n", "Write a prompt"], ["p", "Choose a picture"], ["Ctrl Enter", "Make the clip"], ["/", "Find in prompts"],
  ["j  k", "Next, previous job"], ["Enter", "Open a job"], ["x", "Select a job"], [",  .", "One frame back, on"], ["Esc", "Back, or stop an answer"], ["k", "API key (outside the list)"], ["t", "Light or dark"], ["?", "This list"]];

export function showShortcuts() {
  dialog("Keyboard", h("dl", { class: "shortcuts" }, SHORTCUTS.map(([key, text]) => h("div", {}, h("dt", {}, key.split("  ").map((k) => h("kbd", {}, k))), h("dd", {}, text)))),
    h("form", { method: "dialog", class: "row end" }, h("button", {}, "Close")));
}
