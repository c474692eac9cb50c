// A chart's legend: the colour, the name and a number of each line.

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
