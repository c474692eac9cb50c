// Calls of the API: an answer, or an Error whose message is the console's sentence.

export async function call(path, { method = "GET", body, signal } = {}) {
  const headers = body === undefined ? {} : { "Content-Type": "application/json" };
  let response;
  try {
    response = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("the console does not answer");
  }
  if (response.status === 204) return null;
  let answer;
  try {
    answer = await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error(`the console answered ${response.status} without a reason`);
  }
  if (!response.ok) throw new Error(answer.error.message);
  return answer;
}

export function notice(id, sentence) {
  const line = document.getElementById(id);
  line.hidden = !sentence;
  line.textContent = sentence ?? "";
}
