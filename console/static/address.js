// The address of the page: moving to another, and what is asked in it.

let moved = () => {};

// The cluster that the pages are about, "" = all of them; it stays in the address from page to page.
export const cluster = () => new URLSearchParams(location.search).get("cluster") ?? "";

// A path or address with this cluster in it, unless it names one itself.
export function kept(path) {
  if (!cluster() || !path.startsWith("/") || /[?&]cluster=/.test(path)) return path;
  return `${path}${path.includes("?") ? "&" : "?"}cluster=${encodeURIComponent(cluster())}`;
}

export function onMoved(work) {
  moved = work;
  addEventListener("popstate", () => work());
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[href]");
    if (!link || event.defaultPrevented || event.button !== 0 || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    const url = new URL(link.href);
    if (url.origin !== location.origin || link.hasAttribute("download") || link.target || /^\/(api|static|metrics)\b/.test(url.pathname) || link.getAttribute("href").startsWith("#")) return;
    event.preventDefault();
    go(url.pathname + url.search);
  });
}

export function go(path) {
  history.pushState(null, "", kept(path));
  moved();
}

// Replaces what is asked, without a step of its own in the history: empty values are left out.
export function setQuery(values) {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(values)) {
    if (value) query.set(name, value);
    else query.delete(name);
  }
  history.replaceState(history.state, "", location.pathname + (query.size ? `?${query}` : ""));
}
