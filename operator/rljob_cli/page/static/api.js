// Documents of the server. A document that has not changed comes from the browser's own cache (ETag).

export class Refused extends Error {
  constructor(status, words) {
    super(words);
    this.status = status;
  }
}

const kept = new Map();

export async function get(path) {
  const before = kept.get(path);
  const headers = before ? { "If-None-Match": before.tag } : {};
  const answer = await fetch(path, { headers, cache: "no-store", credentials: "same-origin" });
  if (answer.status === 304 && before) return before.content;
  if (!answer.ok) {
    const words = await answer.text();
    let said = words;
    try { said = JSON.parse(words).error || words; } catch { /* it is plain text */ }
    throw new Refused(answer.status, said);
  }
  const content = await answer.json();
  const tag = answer.headers.get("ETag");
  if (tag) {
    kept.set(path, { tag, content });
    if (kept.size > 40) kept.delete(kept.keys().next().value);
  }
  return content;
}
