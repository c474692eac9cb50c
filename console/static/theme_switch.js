// The button that changes the theme; each change, the system's own too, is the document's event "theme".

export function themeSwitch(button) {
  const dark = matchMedia("(prefers-color-scheme: dark)"), changed = () => document.dispatchEvent(new Event("theme"));
  button.addEventListener("click", () => {
    const root = document.documentElement, now = root.dataset.theme ?? (dark.matches ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
    localStorage.setItem("holdmq-theme", root.dataset.theme);
    changed();
  });
  dark.addEventListener("change", changed);
}
