// The rows of a run's metrics, fetched page by page; new ones are added to those that are here.
import { get } from "./api.js";

const all = new Map();

export function rowsOf(run) {
  if (!all.has(run)) {
    all.set(run, { run, generation: "", seen: "", versions: [], kinds: [], columns: {}, charts: [], busy: null });
  }
  return all.get(run);
}

// Fetch what is new, if `revision` says that there is any; true if rows have changed.
export async function refresh(run, revision) {
  const rows = rowsOf(run);
  if (rows.seen === revision && revision) return false;
  rows.busy ??= load(rows).finally(() => { rows.busy = null; });
  return rows.busy;
}

async function load(rows) {
  let changed = false;
  for (;;) {
    const query = `start=${rows.versions.length}&generation=${encodeURIComponent(rows.generation)}`;
    const page = await get(`/api/runs/${rows.run}/curves?${query}`);
    if (page.generation !== rows.generation || page.start < rows.versions.length) {
      Object.assign(rows, { generation: page.generation, versions: [], kinds: [], columns: {} });
      changed = true;
      if (page.start !== 0) continue;
    }
    const before = rows.versions.length;
    for (const [name, values] of Object.entries(page.columns)) {
      const column = (rows.columns[name] ??= new Array(before).fill(null));
      while (column.length < before) column.push(null);
      for (const value of values) column.push(value);
    }
    for (const version of page.versions) rows.versions.push(version);
    for (const kind of page.kinds) rows.kinds.push(kind);
    rows.charts = page.charts;
    changed ||= page.end > page.start;
    rows.seen = `${page.generation}:${page.total}`;
    if (page.end >= page.total) return changed;
  }
}

// Points of one column, in order of x: {xs, ys, at} with the rows' numbers.
export function points(rows, name, x) {
  const column = rows.columns[name] ?? [];
  const time = rows.columns.seconds ?? [];
  const found = [];
  for (let i = 0; i < column.length; i += 1) {
    if (column[i] === null || column[i] === undefined) continue;
    const place = x === "seconds" ? time[i] : rows.versions[i];
    if (place !== null && place !== undefined) found.push([place, column[i]]);
  }
  found.sort((one, other) => one[0] - other[0]);
  return { xs: found.map((p) => p[0]), ys: found.map((p) => p[1]) };
}
