// Makes elements. Text is only ever set as text: no string becomes markup.

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null) made.setAttribute(name, value);
  }
  made.append(...children.map(String));
  return made;
}

// An element around elements.
export function around(tag, attributes, ...children) {
  const made = element(tag, attributes);
  made.append(...children);
  return made;
}

export function copyOf(template) {
  return document.getElementById(template).content.cloneNode(true);
}

// Sets text where it differs, so that a selection or a screen reader is left alone where nothing changed.
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// Brings a table's body to `items`, in order: a row is made once for a key and then kept, with its focus.
export function syncRows(body, items, keyOf, make, update) {
  const kept = new Map();
  for (const row of body.rows) if (row.dataset.key !== undefined) kept.set(row.dataset.key, row);
  const rows = items.map((item) => {
    const key = String(keyOf(item));
    const row = kept.get(key) ?? make(item);
    row.dataset.key = key;
    update(row, item);
    return row;
  });
  const same = rows.length === body.rows.length && rows.every((row, place) => row === body.rows[place]);
  if (same) return;
  const focused = body.contains(document.activeElement) ? document.activeElement : null;
  body.replaceChildren(...rows);
  focused?.focus({ preventScroll: true });
}

// One row that says why there are no others.
export function emptyRow(body, columns, text) {
  body.replaceChildren(around("tr", {}, element("td", { colspan: columns, class: "empty" }, text)));
}
