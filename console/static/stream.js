// The console's stream of events: what happens now, once a second.

import { apart, call } from "./api.js";

// The counts are read again at this pace, for those that came later than events repeat.
const REREAD_MS = 30_000;
// Without an event for this long the stream is lost, whatever the browser thinks.
const SILENT_MS = 6_000;

// Calls `counts(answer, isWhole)`, `cluster(answer)` and `live(state, word)` until `signal`.
export function follow(signal, { counts, cluster, live }) {
  let heard = 0, source = null, trying = 0;

  async function reread() {
    try {
      counts(await call("/api/v1/tps?seconds=900&top=24", { signal }), true);
    } catch (error) {
      if (signal.aborted) return;
      live("lost", "no connection");
      console.warn("the counts could not be read:", error);
    }
  }

  function listen() {
    source = new EventSource(apart("/api/v1/stream"));
    source.addEventListener("tps", (event) => {
      heard = Date.now();
      live("live", "live");
      counts(JSON.parse(event.data), false);
    });
    source.addEventListener("cluster", (event) => cluster(JSON.parse(event.data)));
    source.addEventListener("open", reread);
    source.addEventListener("error", () => {
      live("lost", "no connection");
      // The browser tries again by itself, except after an answer that was no stream.
      if (source.readyState !== EventSource.CLOSED) return;
      trying = setTimeout(listen, 3000);
      // The stream does not say why it was refused: whoever is signed out is told by this.
      reread();
    });
  }

  const pace = setInterval(reread, REREAD_MS);
  const watch = setInterval(() => { if (heard && Date.now() - heard > SILENT_MS) live("lost", "no connection"); }, 1000);
  signal.addEventListener("abort", () => {
    source?.close();
    clearInterval(pace);
    clearInterval(watch);
    clearTimeout(trying);
  });
  live("waiting", "connecting");
  listen();
}
