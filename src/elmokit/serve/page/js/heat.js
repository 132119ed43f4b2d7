// Tables of numbers with a colour for each cell.
// Input: rows (n, n) and labels.  Output: a table; its colours are those of a fixed scale from 0 to 1 for cosines.

import { inkOn, rampColour, rgb } from "./charts.js";
import { make } from "./panel.js";

// names: one string or element per row; numbers: one short string per column.
export function heatTable({ caption, names, numbers, rows, low = 0, high = 1, digits = 2 }) {
  const cell = (value) => {
    const colour = rampColour("cool", high > low ? (value - low) / (high - low) : 1);
    const td = make("td", { text: value.toFixed(digits) });
    td.style.backgroundColor = rgb(colour);
    td.style.color = inkOn(colour);
    return td;
  };
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    make("table", { class: "heat-table" },
      make("caption", { text: caption }),
      make("thead", {}, make("tr", {}, make("td"), ...numbers.map((number) => make("th", { scope: "col" }, number)))),
      make("tbody", {}, ...rows.map((row, place) => make("tr", {}, make("th", { scope: "row" }, names[place]), ...row.map(cell)))),
    ),
  );
}
