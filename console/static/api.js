// Calls of the API: an answer, or a Refusal whose message is the console's sentence.

export class Refusal extends Error {
  constructor(message, { status = 0, code = "", hint = null, field = null } = {}) {
    super(message);
    Object.assign(this, { name: "Refusal", status, code, hint, field });
  }
}

export async function call(path, { method = "GET", body, signal } = {}) {
  const headers = body === undefined ? {} : { "Content-Type": "application/json" };
  let response;
  try {
    response = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal("the console does not answer", { hint: "Is it running, and is this machine connected to it? This page tries again." });
  }
  if (response.status === 204) return null;
  let answer;
  try {
    answer = await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(`the console answered ${response.status} without a reason`, { status: response.status });
  }
  if (response.ok) return answer;
  throw new Refusal(answer.error.message, { status: response.status, ...answer.error });
}

// A path with names in it: path`/api/v1/topics/${name}`.
export const path = (parts, ...names) => parts.reduce((whole, part, i) => whole + encodeURIComponent(names[i - 1]) + part);
