// Building elements and putting values into words. No markup is ever parsed from a string.

/** An element: h("p", {class: "x", onclick: f}, "text", child). null and false children vanish. */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name === "dataset") Object.assign(element.dataset, value);
    else if (name in element && typeof value !== "string") element[name] = value;
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children.flat(3)) {
    if (child !== null && child !== undefined && child !== false) element.append(child);
  }
}

/** Replaces everything inside `element`. */
export function fill(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

export const byId = (id) => document.getElementById(id);

/** 75 -> "1:15", 3700 -> "1:01:40". */
export function clock(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  const whole = Math.max(0, Math.round(seconds));
  const pad = (n) => String(n).padStart(2, "0");
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor((whole % 3600) / 60)];
  return hours ? `${hours}:${pad(minutes)}:${pad(whole % 60)}` : `${minutes}:${pad(whole % 60)}`;
}

/** 1536 -> "1.5 kB". */
export function bytes(count) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let [value, unit] = [count, 0];
  while (value >= 1000 && unit < units.length - 1) [value, unit] = [value / 1000, unit + 1];
  return `${value < 10 && unit ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

/** A moment from the service: an ISO string or seconds since 1970. */
export function moment(value) {
  if (value === null || value === undefined) return null;
  return typeof value === "number" ? new Date(value * 1000) : new Date(value);
}

/** "today 14:03" or "3 Nov 14:03". */
export function when(value) {
  const date = moment(value);
  if (!date) return "–";
  const time = date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  if (date.toDateString() === new Date().toDateString()) return time;
  return `${date.toLocaleDateString([], { day: "numeric", month: "short" })} ${time}`;
}

export const plural = (count, one, many = `${one}s`) => `${count} ${count === 1 ? one : many}`;

/** A line at the bottom that goes away; `kind` is "", "good" or "bad". */
export function toast(text, kind = "") {
  const line = h("div", { class: `toast ${kind}` }, text);
  byId("toasts").append(line);
  setTimeout(() => line.remove(), kind === "bad" ? 9000 : 4500);
}

/** A modal dialog with a heading; returns it, opened. Escape closes it. */
export function dialog(title, ...children) {
  const box = h("dialog", { "aria-label": title }, h("h2", {}, title), ...children);
  box.addEventListener("close", () => box.remove());
  document.body.append(box);
  box.showModal();
  return box;
}

/** Asks before something that cannot be undone; resolves to true or false. */
export function confirm(title, text, action) {
  return new Promise((resolve) => {
    let answer = false;
    const settle = (value) => () => { answer = value; box.close(); };
    const box = dialog(title, h("p", {}, text), h("div", { class: "row end" },
      h("button", { type: "button", onclick: settle(false) }, "Keep"),
      h("button", { type: "button", class: "danger", onclick: settle(true) }, action)));
    box.addEventListener("close", () => resolve(answer));
  });
}

export async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    toast(`${what} copied`, "good");
  } catch {
    dialog(`Copy ${what}`, h("textarea", { rows: 8, readonly: true, class: "code", value: text }),
      h("p", { class: "hint" }, "The browser does not let this page write to the clipboard."));
  }
}
