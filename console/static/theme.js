// Runs before anything is painted, so that a chosen theme never flashes the other one.
(() => {
  const chosen = localStorage.getItem("holdmq-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
