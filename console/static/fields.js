// Fields of forms: each with its label, its hint and its own error beside it.

import { h } from "./dom.js";

let number = 0;

// { element, name, read(), check(), refuse(error) }. `options` makes it a choice, `rows` a text of several lines.
export function field(name, label, { type = "text", value = "", hint = null, options = null, rows = null, required = false, checks = null, ...rest } = {}) {
  const id = `field-${++number}`, described = `${id}-hint`, wrongId = `${id}-wrong`;
  const wrong = h("p.wrong", { id: wrongId, role: "alert", hidden: true });
  const common = { id, name, required, "aria-describedby": `${hint ? described : ""} ${wrongId}`.trim(), ...rest };
  const input = options ? h("select", common, options.map(([word, shown]) => h("option", { value: word }, shown)))
    : rows ? h("textarea", { ...common, rows, spellcheck: "false" }) : h("input", { type, autocomplete: "off", ...common });
  if (type === "checkbox") input.checked = Boolean(value);
  else if (!options || value) input.value = value ?? "";
  const put = (sentence) => {
    wrong.hidden = !sentence;
    wrong.textContent = sentence ?? "";
    if (sentence) input.setAttribute("aria-invalid", "true");
    else input.removeAttribute("aria-invalid");
  };
  input.addEventListener("input", () => put(null));
  const labelled = h("label", { for: id }, label), hinted = hint && h("p.hint", { id: described }, hint);
  return {
    name, input,
    element: type === "checkbox" ? h("div.field.check", {}, input, labelled, hinted, wrong) : h("div.field", {}, labelled, input, hinted, wrong),
    read: () => (type === "checkbox" ? input.checked : type === "number" ? (input.value === "" ? null : Number(input.value)) : input.value),
    check() {
      const sentence = (required && type !== "checkbox" && !input.value.trim() ? `${label} is needed` : null)
        ?? (input.validity.valid ? null : input.validationMessage) ?? checks?.(input.value) ?? null;
      put(sentence);
      return !sentence;
    },
    refuse: (error) => { put(error.hint ? `${error.message}. ${error.hint}` : error.message); input.focus(); },
  };
}
