// Jobs as they change: one event stream for the whole page, polling where streams fail.

import { events, onKeyChange, refusal } from "./api.js";

const POLL_MS = 3000;

/** Follows every job of this key: `onJob(job)` and `onGone(id)` per change, `onMode("live"|"polling"|"off")`. */
export function followJobs({ onJob, onGone, onMode, onCatchUp }) {
  let controller = new AbortController();

  async function run(signal) {
    let failures = 0;
    while (!signal.aborted) {
      try {
        onMode("live");
        if (failures) onCatchUp();
        for await (const event of events("/events", { signal })) {
          failures = 0;
          const job = JSON.parse(event.data);
          if (job.deleted) onGone(job.id);
          else if (job.status) onJob(job);
        }
      } catch (error) {
        if (signal.aborted) return;
        if (error.status === 401 || refusal()) return onMode("off");
      }
      failures += 1;
      onMode("polling");
      onCatchUp();
      await pause(Math.min(POLL_MS * failures, 15000), signal);
    }
  }

  const restart = () => {
    controller.abort();
    controller = new AbortController();
    if (!refusal()) run(controller.signal);
  };
  onKeyChange(restart);
  restart();
}

const pause = (ms, signal) => new Promise((resolve) => {
  const timer = setTimeout(resolve, ms);
  signal.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
});
