// Calls of the server: what may be chosen, and streams of answers.

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function request(path, key, init = {}) {
  const headers = { "Content-Type": "application/json" };
  if (key) headers.Authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(path, { ...init, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "the server cannot be reached");
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  throw new ApiError(response.status, body?.error?.message ?? `the server answered ${response.status}`);
}

export async function fetchOptions(key) {
  return (await request("/page/options", key)).json();
}

export async function fetchStatus(key) {
  return (await request("/status/data", key)).json();
}

/** Some ways in which a text may go on. */
export async function fetchSuggestions(body, key, signal) {
  return (await request("/v1/suggestions", key, { method: "POST", body: JSON.stringify(body), signal })).json();
}

/** The documents of a streamed chat completion. Aborting the signal makes the server stop as well. */
export async function* streamChat(body, key, signal) {
  const response = await request("/v1/chat/completions", key, { method: "POST", body: JSON.stringify(body), signal });
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const document = JSON.parse(data);
    if (document.error) throw new ApiError(500, document.error.message);
    yield document;
  }
  throw new ApiError(0, "the server hung up in the middle of the answer");
}

/** The data of server-sent events; a network part may end anywhere, within a character too. */
async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) yield part.replace(/^data: /, "");
  }
}
