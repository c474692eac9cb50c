// The button that changes the theme; `changed` is called after each change, also of the system's own.

export function themeSwitch(button, changed) {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  button.addEventListener("click", () => {
    const root = document.documentElement, now = root.dataset.theme ?? (dark.matches ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
    localStorage.setItem("holdmq-theme", root.dataset.theme);
    changed();
  });
  dark.addEventListener("change", changed);
}
