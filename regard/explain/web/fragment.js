/* What is shown, in the part of the address that is never sent: a link brings another to the same view. */

// Values by name; what is empty is left out.
export function writeFragment(values) {
  const kept = Object.entries(values).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const text = new URLSearchParams(kept.map(([name, value]) =>
    [name, typeof value === "string" ? value : JSON.stringify(value)])).toString();
  try { history.replaceState(null, "", `#${text}`); } catch { /* a page in a sandbox has no address of its own */ }
}

// Another link that is opened in the same tab changes nothing but the fragment.
addEventListener("hashchange", () => location.reload());

// `names` of values that are not texts are read as JSON; what is no JSON is left out.
export function readFragment(...names) {
  const found = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  for (const name of names) {
    if (!(name in found)) continue;
    try { found[name] = JSON.parse(found[name]); } catch { delete found[name]; }
  }
  return found;
}
