// Colours of the theme in force, for what is painted on a canvas.

export const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// A custom property is a text with light-dark() in it; a painted element says what it comes to.
export function colour(name) {
  const probe = document.createElement("i");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const resolved = getComputedStyle(probe).color;
  probe.remove();
  return resolved;
}

export const faded = (rgb, alpha) => rgb.replace(/^rgba?\(([^)]+)\)$/, (_, parts) => `rgba(${parts.split(",").slice(0, 3).join(",")}, ${alpha})`);
