"use strict";
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const root = document.documentElement;
  const wantsDark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme || (wantsDark.matches ? "dark" : "light")) === "dark";

  // --- charts: drawn again when the theme changes ----------------------------------------------
  const specs = read("charts");
  const config = (dark) => {
    const ink = dark ? "#e6eaee" : "#1c2024";
    const line = dark ? "#333c45" : "#d9dfe4";
    return {
      background: "transparent",
      font: "system-ui, sans-serif",
      view: { stroke: "transparent" },
      axis: { labelColor: ink, titleColor: ink, gridColor: line, domainColor: line, tickColor: line },
      legend: { labelColor: ink, titleColor: ink, columns: innerWidth < 600 ? 3 : 8, titleLimit: 0 },
      rule: { color: ink },
      range: { category: { scheme: "tableau10" } },
    };
  };
  const draw = async () => {
    for (const [id, spec] of Object.entries(specs)) {
      const place = document.getElementById(id);
      if (place) {
        await vegaEmbed(place, spec, { actions: false, renderer: "svg", config: config(isDark()) });
      }
    }
    root.dataset.drawn = "yes";
  };

  // --- tables: sort by any column, filter by words and by family -------------------------------
  const value = (row, column) => {
    const cell = row.cells[column];
    const number = cell.dataset.v;
    return number === undefined || number === "" ? cell.textContent.trim() : Number(number);
  };
  const order = (a, b) => {
    if (typeof a === "number" && typeof b === "number") return a - b;
    if (typeof a === "number") return -1;
    if (typeof b === "number") return 1;
    return a.localeCompare(b);
  };
  const sortable = (table) => {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      head.querySelector("button").addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const rows = [...table.tBodies[0].rows];
        rows.sort((a, b) => (down ? -1 : 1) * order(value(a, column), value(b, column)));
        table.tBodies[0].append(...rows);
      });
    });
  };
  const filterable = (section) => {
    const rows = [...section.querySelectorAll("tbody tr")];
    const words = section.querySelector("input");
    const family = section.querySelector("select");
    const count = section.querySelector(".count");
    const apply = () => {
      const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        const fits = wanted.every((word) => text.includes(word));
        row.hidden = !fits || Boolean(family && family.value && row.dataset.family !== family.value);
        shown += row.hidden ? 0 : 1;
      }
      count.textContent = `${shown} of ${rows.length} rows`;
    };
    words.addEventListener("input", apply);
    if (family) family.addEventListener("change", apply);
    apply();
  };

  document.querySelectorAll("section.table").forEach((section) => {
    sortable(section.querySelector("table"));
    filterable(section);
  });
  document.getElementById("theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    draw();
  });
  wantsDark.addEventListener("change", draw);
  draw();
})();
