// Round a chart: its legend (the colour, the name and a number of each line), its size and its theme.

// `lines` are { label, stroke }; the numbers come with `fill`.
export function legend(list, lines) {
  list.replaceChildren(...lines.map(({ label, stroke }) => {
    const item = document.createElement("li"), dot = document.createElement("i");
    const name = document.createElement("span"), value = document.createElement("b");
    dot.style.color = stroke;
    name.textContent = name.title = label;
    item.append(dot, name, value);
    return item;
  }));
}

export function fill(list, word) {
  list.querySelectorAll("b").forEach((value, i) => { value.textContent = word(i); });
}

// Until `signal`: calls `resize` when the chart's box changes, `restyle` when the theme does.
export function keepFitting(box, signal, resize, restyle) {
  const sizes = new ResizeObserver(resize);
  sizes.observe(box);
  document.addEventListener("theme", restyle, { signal });
  signal.addEventListener("abort", () => sizes.disconnect());
}
